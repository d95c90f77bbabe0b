"""Ops that write and read the paged KV cache: QK-norm with RoPE, and attention."""

from __future__ import annotations

from qwen3_a8w8.kernels.ops.recorder import Recorder, static_extent
from qwen3_a8w8.kernels.program import Ref, Shape
from qwen3_a8w8.kernels.signature import BFLOAT16, FLOAT32, INT8, INT32


class KvCache:
    """The four cache parameters of a callable, which ops take together.

    k and v are int8 with float32 scales, or bfloat16 with scale tensors whose last extent is 0.
    """

    __slots__ = ("k", "k_scale", "v", "v_scale")

    def __init__(self, k: Ref, v: Ref, k_scale: Ref, v_scale: Ref) -> None:
        self.k = k
        self.v = v
        self.k_scale = k_scale
        self.v_scale = v_scale

    @property
    def refs(self) -> tuple[Ref, Ref, Ref, Ref]:
        """In the order k, v, k_scale, v_scale."""
        return self.k, self.v, self.k_scale, self.v_scale


class CacheOps(Recorder):
    """Attention, and the op that fills its cache (notation and rules: see the package)."""

    def qk_norm_rope_cache(
        self,
        qkv: Ref,
        q_norm: Ref,
        k_norm: Ref,
        rope: Ref,
        positions: Ref,
        slot_mapping: Ref,
        cache: KvCache,
        *,
        layer: int,
        eps: float,
    ) -> Ref:
        """Norms and rotates q and k per head; writes k and v into the cache.

        For each token: q and k heads are RMS-normed over D (weights q_norm, k_norm), then
        rotated by halves: (a, b) -> (a*cos - b*sin, b*cos + a*sin) for a = x[:D/2],
        b = x[D/2:], cos = rope[p, :D/2], sin = rope[p, D/2:] at p = positions[t]. The rotated k
        and the plain v are quantised per token and KV head (or rounded to bfloat16, half to
        even: node `qk_norm_rope_cache_bf16`) and written to slot s = slot_mapping[t]: block
        s // block_size, offset s % block_size of `layer`.

        Args:
            qkv: [T, (num_heads + 2 * kv_heads) * D] float32, q heads first, then k, then v.
            q_norm: [D] float32.
            k_norm: [D] float32.
            rope: [max_positions, D] float32, cosines then sines.
            positions: [T] int32.
            slot_mapping: [T] int32, distinct.
            cache: k, v [layers, blocks, kv_heads, block_size, D] int8 and k_scale, v_scale
                [layers, blocks, kv_heads, block_size] float32, or bfloat16 and [..., 0];
                updated in place.
            layer: which layer's part of the cache.
            eps: of the two norms.

        Returns:
            q [T, num_heads * D] float32.
        """
        op = "qk_norm_rope_cache"
        num_tokens = qkv.shape[0]
        _, _, kv_heads, _, head_dim = self._expect_cache(op, cache)
        self._expect(op, qkv, FLOAT32, (None, None))
        for norm in (q_norm, k_norm):
            self._expect(op, norm, FLOAT32, (head_dim,))
        self._expect(op, rope, FLOAT32, (None, head_dim))
        self._expect(op, positions, INT32, (num_tokens,))
        self._expect(op, slot_mapping, INT32, (num_tokens,))
        q_size = static_extent(qkv.shape[1]) - 2 * static_extent(kv_heads) * static_extent(head_dim)
        out = self._temp(op, FLOAT32, (num_tokens, q_size))
        inputs = (qkv, q_norm, k_norm, rope, positions, slot_mapping)
        return self._node(
            _of_cache(op, cache), inputs, out, updates=cache.refs, layer=layer, eps=eps
        )

    def attention(
        self,
        q: Ref,
        cache: KvCache,
        block_tables: Ref,
        context_lens: Ref,
        seq_index: Ref | None,
        *,
        layer: int,
        scale: float,
    ) -> Ref:
        """Attention of each query token over its sequence's cached keys and values.

        Query head h uses KV head h // (num_heads / kv_heads). With K = k * k_scale and
        V = v * v_scale: o = softmax(scale * q K^T) V over cache positions
        [0, context_lens[t]), position p in block block_tables[i, p // block_size] where
        i = seq_index[t]. q, softmax and products are in float32. Causality is in
        context_lens: a prefill token at position p has p + 1. On a bfloat16 cache (node
        `attention_bf16`) K = k and V = v.

        Args:
            q: [T, num_heads * D] float32.
            cache: see `qk_norm_rope_cache`; read.
            block_tables: [num_seqs, max_blocks] int32.
            context_lens: [T] int32.
            seq_index: [T] int32, ascending; None when row t is sequence t.
            layer: which layer's part of the cache.
            scale: 1 / sqrt(D).

        Returns:
            [T, num_heads * D] float32.
        """
        op = "attention"
        self._expect_cache(op, cache)
        self._expect(op, q, FLOAT32, (None, None))
        self._expect(op, block_tables, INT32, (None, None))
        self._expect(op, context_lens, INT32, (q.shape[0],))
        inputs: tuple[Ref, ...] = (q, *cache.refs, block_tables, context_lens)
        if seq_index is not None:
            self._expect(op, seq_index, INT32, (q.shape[0],))
            inputs = (*inputs, seq_index)
        out = self._temp(op, FLOAT32, q.shape)
        return self._node(_of_cache(op, cache), inputs, out, layer=layer, scale=scale)

    def _expect_cache(self, op: str, cache: KvCache) -> Shape:
        shape = cache.k.shape
        is_bf16 = cache.k.dtype is BFLOAT16
        dtype = BFLOAT16 if is_bf16 else INT8
        self._expect(op, cache.k, dtype, (None,) * 5)
        self._expect(op, cache.v, dtype, shape)
        for scale in (cache.k_scale, cache.v_scale):
            self._expect(op, scale, FLOAT32, (*shape[:-2], 0 if is_bf16 else shape[-2]))
        return shape


def _of_cache(op: str, cache: KvCache) -> str:
    """The node's name: another dtype is another kernel, which a backend has or refuses."""
    return f"{op}_bf16" if cache.k.dtype is BFLOAT16 else op
