"""Every op in plain torch, as a function over the values of one dispatch.

`OPS` maps names of nodes to these functions; `reference.py` runs a program with them.
The op's method in `ops/` specifies what each computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from qwen3_a8w8.kernels.ops import QUANT_EPS, SAMPLE_CONTROLS
from qwen3_a8w8.kernels.program import Node, Program, Ref, RefKind
from qwen3_a8w8.kernels.reference_sampling import sample_row
from qwen3_a8w8.kernels.signature import Dim


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric int8 quantisation of the last dimension.

    Args:
        x: [..., N] float32.

    Returns:
        q [..., N] int8 and scale [...] float32, with x close to q * scale.
        Source: rule of `ops/`, scale = max(max|x|, QUANT_EPS) / 127, half to even.
    """
    scale = x.abs().amax(dim=-1).clamp(min=QUANT_EPS) / 127
    q = torch.round(x / scale.unsqueeze(-1)).clamp(-127, 127)
    return q.to(torch.int8), scale


class Values:
    """Tensors of one dispatch, of which ops see the live rows.

    Args:
        program: what runs.
        args: arguments by name.
        dims: values of the run-time Dims.
        constants: by name.
        is_exact: skip every quantisation.
        float_cache: K and V of each layer, used if `is_exact`.
    """

    def __init__(
        self,
        program: Program,
        args: Mapping[str, Tensor],
        dims: Mapping[str, int],
        constants: Mapping[str, Tensor],
        *,
        is_exact: bool,
        float_cache: dict[int, tuple[Tensor, Tensor]],
    ) -> None:
        self.is_exact = is_exact
        self.float_cache = float_cache
        self._args = args
        self._constants = constants
        self._dims = dims
        self._temps: dict[int, Tensor] = {}
        self._counted: Dim | None = None
        self._active = 0
        if program.active_count is not None:
            name, self._counted = program.active_count
            self._active = int(args[name].item())

    def _live(self, ref: Ref, tensor: Tensor) -> Tensor:
        is_counted = len(ref.shape) > 0 and ref.shape[0] is self._counted
        return tensor[: self._active] if is_counted and self._counted is not None else tensor

    def get(self, ref: Ref) -> Tensor:
        """The value of a ref, live rows only."""
        if ref.kind is RefKind.TEMP:
            return self._temps[ref.index]
        store = self._args if ref.kind is RefKind.ARG else self._constants
        return self._live(ref, store[ref.name])

    def put(self, ref: Ref, value: Tensor) -> None:
        """Stores a temporary, or writes an output argument."""
        if ref.kind is RefKind.TEMP:
            self._temps[ref.index] = value
        else:
            self._live(ref, self._args[ref.name])[...] = value

    def quantize(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Quantised rows, or in exact mode the rows themselves with scale 1."""
        if self.is_exact:
            return x, torch.ones(x.shape[:-1])
        return quantize_rows(x)


def _embed(run: Values, node: Node) -> None:
    ids, table, *rows = map(run.get, node.inputs)
    if ids.dim() == 2:
        ids = ids[0] if rows and ids.shape[0] == 1 else ids[:, 0]
    if rows:
        ids = ids[: rows[0].shape[0]]
    run.put(node.outputs[0], table[ids.long()].float())


def _copy(run: Values, node: Node) -> None:
    run.put(node.outputs[0], run.get(node.inputs[0]))


def _normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps) * weight


def _rms_norm(run: Values, node: Node) -> None:
    x, weight = map(run.get, node.inputs)
    run.put(node.outputs[0], _normed(x, weight, node.attributes["eps"]))


def _rms_norm_quant(run: Values, node: Node) -> None:
    x, weight = map(run.get, node.inputs)
    _put_quantised(run, node, _normed(x, weight, node.attributes["eps"]))


def _put_quantised(run: Values, node: Node, x: Tensor) -> None:
    for ref, value in zip(node.outputs, run.quantize(x), strict=True):
        run.put(ref, value)


def _quantize(run: Values, node: Node) -> None:
    _put_quantised(run, node, run.get(node.inputs[0]))


def _linear(run: Values, node: Node) -> None:
    x_q, x_scale, w_q, w_scale = (run.get(ref) for ref in node.inputs[:4])
    # Sums of int8 products stay far below 2^53, so float64 holds them exactly.
    acc = (x_q.double() @ w_q.double().T).float()
    y = acc * x_scale.unsqueeze(-1) * w_scale
    if node.op == "linear_add":
        y = run.get(node.inputs[4]) + y
    run.put(node.outputs[0], y)


def _bf16_products(run: Values, x: Tensor, weight: Tensor) -> Tensor:
    rounded = x if run.is_exact else x.bfloat16().float()
    # Row by row: a matrix product may sum in another order for another number of rows.
    table = weight.float()
    rows = [torch.mv(table, row) for row in rounded]
    return torch.stack(rows) if rows else x.new_empty(0, weight.shape[0])


def _linear_bf16(run: Values, node: Node) -> None:
    x, weight = map(run.get, node.inputs[:2])
    y = _bf16_products(run, x, weight)
    if node.op == "linear_bf16_add":
        y = run.get(node.inputs[2]) + y
    run.put(node.outputs[0], y)


def _concat(run: Values, node: Node) -> None:
    run.put(node.outputs[0], torch.cat([run.get(ref) for ref in node.inputs], dim=1))


def _rotate(x: Tensor, rope: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    cos, sin = rope[:, None, :half], rope[:, None, half:]  # [T, 1, D/2]
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def _qk_norm_rope_cache(run: Values, node: Node) -> None:
    qkv, q_norm, k_norm, rope, positions, slots = map(run.get, node.inputs)
    caches = [run.get(ref) for ref in node.updates]
    layer, eps = int(node.attributes["layer"]), node.attributes["eps"]
    _, num_blocks, kv_heads, block_size, head_dim = caches[0].shape
    num_tokens = qkv.shape[0]
    heads = qkv.view(num_tokens, -1, head_dim)  # [T, num_heads + 2 * kv_heads, D]
    num_heads = heads.shape[1] - 2 * kv_heads
    table = rope[positions.long()]
    q = _rotate(_normed(heads[:, :num_heads], q_norm, eps), table)
    k = _rotate(_normed(heads[:, num_heads : num_heads + kv_heads], k_norm, eps), table)
    v = heads[:, num_heads + kv_heads :]
    run.put(node.outputs[0], q.reshape(num_tokens, -1))

    block, offset = slots.long() // block_size, slots.long() % block_size
    if run.is_exact:
        shape = (num_blocks, kv_heads, block_size, head_dim)
        kept = run.float_cache.get(layer)
        if kept is None or kept[0].shape != shape:
            kept = run.float_cache[layer] = (torch.zeros(shape), torch.zeros(shape))
        kept[0][block, :, offset] = k
        kept[1][block, :, offset] = v
        return
    k_cache, v_cache, k_scale, v_scale = (cache[layer] for cache in caches)
    for cache, cache_scale, value in ((k_cache, k_scale, k), (v_cache, v_scale, v)):
        if cache.dtype is torch.bfloat16:
            cache[block, :, offset] = value.bfloat16()
            continue
        q_value, scale = quantize_rows(value)
        cache[block, :, offset] = q_value
        cache_scale[block, :, offset] = scale


def _attention(run: Values, node: Node) -> None:
    q, *caches, block_tables, context_lens = (run.get(ref) for ref in node.inputs[:7])
    layer, scale = int(node.attributes["layer"]), node.attributes["scale"]
    k_cache, v_cache, k_scale, v_scale = (cache[layer] for cache in caches)
    _, kv_heads, block_size, head_dim = k_cache.shape
    if run.is_exact:
        keys, values = run.float_cache[layer]
    elif k_cache.dtype is torch.bfloat16:
        keys, values = k_cache.float(), v_cache.float()
    else:
        keys = k_cache.float() * k_scale.unsqueeze(-1)
        values = v_cache.float() * v_scale.unsqueeze(-1)
    num_tokens = q.shape[0]
    rows = run.get(node.inputs[7]) if len(node.inputs) > 7 else torch.arange(num_tokens)
    grouped = q.view(num_tokens, kv_heads, -1, head_dim)  # [T, KV, group, D]
    out = torch.empty_like(grouped)
    for t in range(num_tokens):
        length = int(context_lens[t])
        num_blocks = -(-length // block_size)
        blocks = block_tables[int(rows[t]), :num_blocks].long()
        k = keys[blocks].transpose(0, 1).reshape(kv_heads, -1, head_dim)[:, :length]
        v = values[blocks].transpose(0, 1).reshape(kv_heads, -1, head_dim)[:, :length]
        weights = torch.softmax(scale * grouped[t] @ k.transpose(1, 2), dim=-1)
        out[t] = weights @ v
    run.put(node.outputs[0], out.reshape(num_tokens, -1))


def _silu_mul_quant(run: Values, node: Node) -> None:
    gate, up = run.get(node.inputs[0]).chunk(2, dim=-1)
    _put_quantised(run, node, torch.nn.functional.silu(gate) * up)


def _silu_mul(run: Values, node: Node) -> None:
    gate, up = run.get(node.inputs[0]).chunk(2, dim=-1)
    run.put(node.outputs[0], torch.nn.functional.silu(gate) * up)


def _gather_rows(run: Values, node: Node) -> None:
    x, indices = map(run.get, node.inputs)
    run.put(node.outputs[0], x[indices.long()])


def _lm_head(run: Values, node: Node) -> None:
    x, weight = map(run.get, node.inputs)
    run.put(node.outputs[0], _bf16_products(run, x, weight))


def _sample(run: Values, node: Node) -> None:
    logits = run.get(node.inputs[0])
    controls = {
        name: run.get(ref) for name, ref in zip(SAMPLE_CONTROLS, node.inputs[1:], strict=True)
    }
    sampled, logprobs, top_ids, top_logprobs = (run.get(ref) for ref in node.outputs)
    for row in range(logits.shape[0]):
        token, reported = sample_row(logits[row], controls, row)
        sampled[row] = 0
        sampled[row, 0] = token
        if reported is not None:
            logprobs[row], ids, values = reported
            top_ids[row, : ids.numel()] = ids
            top_logprobs[row, : values.numel()] = values


OPS: dict[str, Callable[[Values, Node], None]] = {
    "embed": _embed,
    "copy": _copy,
    "rms_norm": _rms_norm,
    "rms_norm_quant": _rms_norm_quant,
    "quantize": _quantize,
    "linear": _linear,
    "linear_add": _linear,
    "linear_bf16": _linear_bf16,
    "linear_bf16_add": _linear_bf16,
    "concat": _concat,
    "qk_norm_rope_cache": _qk_norm_rope_cache,
    "qk_norm_rope_cache_bf16": _qk_norm_rope_cache,
    "attention": _attention,
    "attention_bf16": _attention,
    "silu_mul_quant": _silu_mul_quant,
    "silu_mul": _silu_mul,
    "gather_rows": _gather_rows,
    "lm_head": _lm_head,
    "sample": _sample,
}
