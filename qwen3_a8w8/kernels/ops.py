"""The op set that models are written in, and the exact arithmetic of each op.

Calling an op on an `Ops` records it and infers shapes; what it computes is
written in its docstring and, as running code, in `reference.py`. Ops are as
coarse as the fastest backend's fusions, so that a backend maps one op to one
kernel.

Two rules hold for every op (batch invariance):
* a row's result depends on that row alone: reductions run in an order that
  knows neither the number of rows, nor the row's index, nor the thread count;
* rows past the live count of a counted Dim are neither read nor written.

Notation: T rows (tokens), H hidden, D head_dim, round = half to even.
`quantised row`: scale = max(max|x|, EPS) / 127, q = clamp(round(x / scale), +-127).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qwen3_a8w8.errors import SignatureError
from qwen3_a8w8.kernels.program import ConstLayout, Node, Ref, RefKind, Shape
from qwen3_a8w8.kernels.signature import BFLOAT16, FLOAT32, INT8, INT32, DType

QUANT_EPS = 1e-10
"""Smallest absolute maximum of a quantised row, so that a zero row has a finite scale."""


class LinearWeight:
    """An int8 linear's constants: w_q [out, in] int8 and w_scale [out] float32."""

    __slots__ = ("w_q", "w_scale")

    def __init__(self, w_q: Ref, w_scale: Ref) -> None:
        self.w_q = w_q
        self.w_scale = w_scale


class KvCache:
    """The four cache parameters of a callable, handed to ops together.

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


class Ops:
    """Records op calls of one callable."""

    def __init__(
        self, name: str, dims: Mapping[str, int], options: Mapping[str, int | float]
    ) -> None:
        self.name = name
        self.dims = dict(dims)
        self.options = dict(options)
        self.refs: list[Ref] = []
        self.nodes: list[Node] = []
        self._constants: dict[str, Ref] = {}

    # ---- symbolic tensors

    def argument(self, name: str, dtype: DType, shape: Shape) -> Ref:
        """A parameter of the callable."""
        return self._ref(RefKind.ARG, name, dtype, shape)

    def constant(
        self,
        name: str,
        dtype: DType,
        shape: tuple[int, ...],
        layout: ConstLayout = ConstLayout.PLAIN,
    ) -> Ref:
        """A weight or table, declared at its first use and bound by name later."""
        ref = self._constants.get(name)
        if ref is None:
            ref = self._ref(RefKind.CONST, name, dtype, shape, layout)
            self._constants[name] = ref
        elif (ref.dtype, ref.shape, ref.layout) != (dtype, shape, layout):
            raise SignatureError(
                f"{self.name}: constant {name!r} is declared as {ref.dtype.label} {ref.shape} "
                f"and as {dtype.label} {shape}"
            )
        return ref

    def linear_weight(self, name: str, out_features: int, in_features: int) -> LinearWeight:
        """Constants `name.w_q` [out, in] int8 and `name.w_scale` [out] float32."""
        return LinearWeight(
            self.constant(
                f"{name}.w_q", INT8, (out_features, in_features), ConstLayout.LINEAR_INT8
            ),
            self.constant(f"{name}.w_scale", FLOAT32, (out_features,)),
        )

    # ---- ops

    def embed(self, token_ids: Ref, table: Ref, rows: Ref | None = None) -> Ref:
        """Rows of the embedding: y[t] = float32(table[token_ids[t]]).

        Args:
            token_ids: [T] or [B, 8] int32; of the latter column 0 counts.
            table: [vocab, H] bfloat16.
            rows: [T] of anything, only looked at for T, when that isn't the first extent of
                `token_ids`: of [1, 8] ids the first T columns are taken, of [B, 8] ids with
                B > 1 column 0 of the first T rows.

        Returns:
            [T, H] float32.
        """
        self._expect("embed", token_ids, INT32, None)
        self._expect("embed", table, BFLOAT16, (None, None))
        leading = token_ids if rows is None else rows
        out = self._temp("embed", FLOAT32, (leading.shape[0], table.shape[1]))
        inputs = (token_ids, table) if rows is None else (token_ids, table, rows)
        return self._node("embed", inputs, out)

    def copy(self, x: Ref, out: Ref) -> Ref:
        """Copies a tensor into an argument of the callable.

        Args:
            x: [T, H] float32.
            out: [T, H] float32, written.

        Returns:
            `out`.
        """
        self._expect("copy", x, FLOAT32, (None, None))
        self._expect("copy", out, FLOAT32, x.shape)
        return self._node("copy", (x,), out)

    def rms_norm(self, x: Ref, weight: Ref, eps: float) -> Ref:
        """y = x / sqrt(mean(x^2) + eps) * weight, per row, in float32.

        Args:
            x: [T, H] float32.
            weight: [H] float32.
            eps: added to the mean square.

        Returns:
            [T, H] float32.  Source: Zhang and Sennrich 2019, eq. 4.
        """
        self._expect("rms_norm", x, FLOAT32, (None, None))
        self._expect("rms_norm", weight, FLOAT32, (x.shape[1],))
        out = self._temp("rms_norm", FLOAT32, x.shape)
        return self._node("rms_norm", (x, weight), out, eps=eps)

    def rms_norm_quant(self, x: Ref, weight: Ref, eps: float) -> tuple[Ref, Ref]:
        """`rms_norm`, then each row quantised.

        Args:
            x: [T, H] float32.
            weight: [H] float32.
            eps: added to the mean square.

        Returns:
            x_q [T, H] int8 and x_scale [T] float32.
        """
        self._expect("rms_norm_quant", x, FLOAT32, (None, None))
        self._expect("rms_norm_quant", weight, FLOAT32, (x.shape[1],))
        outs = self._quantised("rms_norm_quant", x.shape)
        self._node("rms_norm_quant", (x, weight), *outs, eps=eps)
        return outs

    def quantize(self, x: Ref) -> tuple[Ref, Ref]:
        """Quantises each row.

        Args:
            x: [T, N] float32.

        Returns:
            x_q [T, N] int8 and x_scale [T] float32.
        """
        self._expect("quantize", x, FLOAT32, (None, None))
        outs = self._quantised("quantize", x.shape)
        self._node("quantize", (x,), *outs)
        return outs

    def linear(self, x_q: Ref, x_scale: Ref, weight: LinearWeight, out: Ref | None = None) -> Ref:
        """y[t, n] = float32(sum_k x_q[t, k] * w_q[n, k]) * x_scale[t] * w_scale[n].

        The sum is an exact int32; the products are taken from left to right in float32.

        Args:
            x_q: [T, in] int8.
            x_scale: [T] float32.
            weight: of [out, in].
            out: [T, out] float32 to write to; None: a temporary.

        Returns:
            [T, out] float32.
        """
        if out is None:
            out = self._linear_out("linear", x_q, x_scale, weight)
        else:
            self._expect("linear", x_q, INT8, (out.shape[0], weight.w_q.shape[1]))
            self._expect("linear", out, FLOAT32, (x_q.shape[0], weight.w_q.shape[0]))
        return self._node("linear", (x_q, x_scale, weight.w_q, weight.w_scale), out)

    def linear_add(self, x_q: Ref, x_scale: Ref, weight: LinearWeight, residual: Ref) -> Ref:
        """residual + `linear`, added in float32.

        Args:
            x_q: [T, in] int8.
            x_scale: [T] float32.
            weight: of [out, in].
            residual: [T, out] float32; its memory may be reused for the result.

        Returns:
            [T, out] float32.
        """
        out = self._linear_out("linear_add", x_q, x_scale, weight)
        self._expect("linear_add", residual, FLOAT32, out.shape)
        return self._node("linear_add", (x_q, x_scale, weight.w_q, weight.w_scale, residual), out)

    def bf16_weight(self, name: str, out_features: int, in_features: int) -> Ref:
        """Constant `name.weight` [out, in] bfloat16 of a linear that isn't quantised."""
        shape = (out_features, in_features)
        return self.constant(f"{name}.weight", BFLOAT16, shape, ConstLayout.LINEAR_BF16)

    def linear_bf16(self, x: Ref, weight: Ref) -> Ref:
        """y[t, n] = sum_k bf16(x[t, k]) * weight[n, k], summed in float32.

        Args:
            x: [T, in] float32; rounded to bfloat16, half to even.
            weight: [out, in] bfloat16.

        Returns:
            [T, out] float32.
        """
        out = self._linear_bf16_out("linear_bf16", x, weight)
        return self._node("linear_bf16", (x, weight), out)

    def linear_bf16_add(self, x: Ref, weight: Ref, residual: Ref) -> Ref:
        """residual + `linear_bf16`, added in float32.

        Args:
            x: [T, in] float32.
            weight: [out, in] bfloat16.
            residual: [T, out] float32.

        Returns:
            [T, out] float32.
        """
        out = self._linear_bf16_out("linear_bf16_add", x, weight)
        self._expect("linear_bf16_add", residual, FLOAT32, out.shape)
        return self._node("linear_bf16_add", (x, weight, residual), out)

    def concat(self, parts: Sequence[Ref]) -> Ref:
        """Puts the columns of several tensors side by side.

        Args:
            parts: at least one, each [T, N_i] float32.

        Returns:
            [T, sum of N_i] float32.
        """
        for part in parts:
            self._expect("concat", part, FLOAT32, (parts[0].shape[0], None))
        width = sum(_int(part.shape[1]) for part in parts)
        out = self._temp("concat", FLOAT32, (parts[0].shape[0], width))
        return self._node("concat", tuple(parts), out)

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
        q_size = _int(qkv.shape[1]) - 2 * _int(kv_heads) * _int(head_dim)
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

    def silu_mul_quant(self, gate_up: Ref) -> tuple[Ref, Ref]:
        """h = silu(gate) * up per row, then quantised; silu(x) = x / (1 + exp(-x)).

        Args:
            gate_up: [T, 2 * I] float32, gate in the first half.

        Returns:
            h_q [T, I] int8 and h_scale [T] float32.
        """
        self._expect("silu_mul_quant", gate_up, FLOAT32, (None, None))
        half = _int(gate_up.shape[1]) // 2
        outs = self._quantised("silu_mul_quant", (gate_up.shape[0], half))
        self._node("silu_mul_quant", (gate_up,), *outs)
        return outs

    def silu_mul(self, gate_up: Ref) -> Ref:
        """h = silu(gate) * up per row, as in `silu_mul_quant`, but not quantised.

        Args:
            gate_up: [T, 2 * I] float32, gate in the first half.

        Returns:
            [T, I] float32.
        """
        self._expect("silu_mul", gate_up, FLOAT32, (None, None))
        half = _int(gate_up.shape[1]) // 2
        out = self._temp("silu_mul", FLOAT32, (gate_up.shape[0], half))
        return self._node("silu_mul", (gate_up,), out)

    def gather_rows(self, x: Ref, indices: Ref) -> Ref:
        """y[s] = x[indices[s]].

        Args:
            x: [T, H] float32.
            indices: [S] int32.

        Returns:
            [S, H] float32.
        """
        self._expect("gather_rows", x, FLOAT32, (None, None))
        self._expect("gather_rows", indices, INT32, (None,))
        out = self._temp("gather_rows", FLOAT32, (indices.shape[0], x.shape[1]))
        return self._node("gather_rows", (x, indices), out)

    def lm_head(self, x: Ref, weight: Ref, out: Ref) -> Ref:
        """logits[t, v] = sum_h bf16(x[t, h]) * weight[v, h], summed in float32.

        Args:
            x: [T, H] float32; rounded to bfloat16, half to even.
            weight: [vocab, H] bfloat16.
            out: [T, vocab] float32, written.

        Returns:
            `out`.
        """
        self._expect("lm_head", x, FLOAT32, (None, None))
        self._expect("lm_head", weight, BFLOAT16, (None, x.shape[1]))
        self._expect("lm_head", out, FLOAT32, (x.shape[0], weight.shape[0]))
        return self._node("lm_head", (x, weight), out)

    def sample(
        self,
        logits: Ref,
        controls: Mapping[str, Ref],
        sampled_ids: Ref,
        logprobs: Ref,
        top_ids: Ref,
        top_logprobs: Ref,
    ) -> tuple[Ref, Ref, Ref, Ref]:
        """Draws one token per row and reports log-probabilities.

        Log-probabilities are log_softmax(logits) of the row as it came in. For the draw, a
        working copy l goes through, in this order:
        1. l[bias_ids[j]] += bias_values[j] for j in bias_range[b] (-inf bars a token); if
           allowed_start[b] >= 0, l[i] = -inf for each i whose bit is 0, which is bit i % 32 of
           allowed_words[allowed_start[b] + i // 32];
        2. for j in history_range[b], i = history_ids[j], c = history_counts[j] (occurrences in
           the output, 0 if only in the prompt): l[i] = l[i] / r if l[i] > 0 else l[i] * r with
           r = repetition_penalty; then l[i] -= c * frequency_penalty and, if c > 0,
           l[i] -= presence_penalty;
        3. temperature 0: the argmax, lowest id among equals. Otherwise
           w = exp((l - max l) / temperature);
        4. keep w >= min_p * max w; of these the top_k largest (<= 0: all); of these the
           smallest set, largest first, whose weight reaches top_p of their sum; among equal
           weights lower ids come first;
        5. u in [0, 1): philox4x32-10 with key (low, high word of the seed) and counter
           (position, 0, 0, 0); u = ((w0 << 21) ^ (w1 >> 11)) * 2^-53 from its first two words;
           the token is the first kept one in the order of ids at which the running sum of w
           exceeds u * (sum of kept w).
        At least one token is always kept. A row whose logits aren't all finite gives id -1.

        Args:
            logits: [B, vocab] float32.
            controls: `SAMPLE_CONTROLS` by name: temperature, top_p, min_p,
                repetition_penalty, presence_penalty, frequency_penalty [B] float32; top_k,
                positions, num_logprobs [B] int32; seeds [B] int64; bias_range, history_range
                [B, 2] int32 (begin, end); bias_ids, history_ids, history_counts [*] int32;
                bias_values [*] float32; allowed_start [B] int32, -1 where all are allowed;
                allowed_words [*] int32, ceil(vocab / 32) for each row that has a mask.
                num_logprobs: alternatives to report, -1 for no log-probabilities at all.
            sampled_ids: [B, 8] int32, written: column 0 the token, the others 0.
            logprobs: [B] float32, written where num_logprobs >= 0.
            top_ids: [B, 20] int32, the first num_logprobs of a row are written, most likely
                first, lower ids first among equals.
            top_logprobs: [B, 20] float32, likewise.

        Returns:
            sampled_ids, logprobs, top_ids, top_logprobs.
            Source: Salmon et al. 2011 (philox).
        """
        self._expect("sample", logits, FLOAT32, (None, None))
        if tuple(controls) != SAMPLE_CONTROLS:
            raise SignatureError(
                f"{self.name}: sample got the controls {tuple(controls)}, "
                f"expected {SAMPLE_CONTROLS}"
            )
        inputs = (logits, *controls.values())
        outs = (sampled_ids, logprobs, top_ids, top_logprobs)
        self._node("sample", inputs, *outs)
        return outs

    # ---- recording

    def _ref(
        self,
        kind: RefKind,
        name: str,
        dtype: DType,
        shape: Shape,
        layout: ConstLayout = ConstLayout.PLAIN,
    ) -> Ref:
        ref = Ref(len(self.refs), kind, name, dtype, shape, layout)
        self.refs.append(ref)
        return ref

    def _temp(self, op: str, dtype: DType, shape: Shape) -> Ref:
        return self._ref(RefKind.TEMP, op, dtype, shape)

    def _node(
        self,
        op: str,
        inputs: tuple[Ref, ...],
        *outputs: Ref,
        updates: tuple[Ref, ...] = (),
        **attrs: int | float,
    ) -> Ref:
        self.nodes.append(Node(op, inputs, outputs, updates, tuple(sorted(attrs.items()))))
        return outputs[0]

    def _quantised(self, op: str, shape: Shape) -> tuple[Ref, Ref]:
        return self._temp(op, INT8, shape), self._temp(op, FLOAT32, shape[:1])

    def _linear_out(self, op: str, x_q: Ref, x_scale: Ref, weight: LinearWeight) -> Ref:
        self._expect(op, x_q, INT8, (None, weight.w_q.shape[1]))
        self._expect(op, x_scale, FLOAT32, x_q.shape[:1])
        return self._temp(op, FLOAT32, (x_q.shape[0], weight.w_q.shape[0]))

    def _linear_bf16_out(self, op: str, x: Ref, weight: Ref) -> Ref:
        self._expect(op, x, FLOAT32, (None, None))
        self._expect(op, weight, BFLOAT16, (None, x.shape[1]))
        return self._temp(op, FLOAT32, (x.shape[0], weight.shape[0]))

    def _expect_cache(self, op: str, cache: KvCache) -> Shape:
        shape = cache.k.shape
        is_bf16 = cache.k.dtype is BFLOAT16
        dtype = BFLOAT16 if is_bf16 else INT8
        self._expect(op, cache.k, dtype, (None,) * 5)
        self._expect(op, cache.v, dtype, shape)
        for scale in (cache.k_scale, cache.v_scale):
            self._expect(op, scale, FLOAT32, (*shape[:-2], 0 if is_bf16 else shape[-2]))
        return shape

    def _expect(self, op: str, ref: Ref, dtype: DType, shape: tuple[object, ...] | None) -> None:
        fits = shape is None or (
            len(shape) == len(ref.shape)
            and all(want is None or want == got for want, got in zip(shape, ref.shape, strict=True))
        )
        if ref.dtype is not dtype or not fits:
            raise SignatureError(
                f"{self.name}: {op} got {ref.name!r} as {ref.dtype.label} {ref.shape}, "
                f"expected {dtype.label} {'of any shape' if shape is None else shape}"
            )


SAMPLE_CONTROLS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seeds",
    "positions",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "num_logprobs",
    "bias_range",
    "bias_ids",
    "bias_values",
    "history_range",
    "history_ids",
    "history_counts",
    "allowed_start",
    "allowed_words",
)
"""Inputs of `Ops.sample` after the logits, in the order in which its node lists them."""


def _of_cache(op: str, cache: KvCache) -> str:
    """The node's name: another dtype is another kernel, which a backend has or refuses."""
    return f"{op}_bf16" if cache.k.dtype is BFLOAT16 else op


def _int(extent: object) -> int:
    if not isinstance(extent, int):
        raise SignatureError(f"{extent!r} must be a static extent here")
    return extent
