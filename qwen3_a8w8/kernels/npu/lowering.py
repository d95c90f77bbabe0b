"""What each node of a program does on tensors of the device.

`Values` are the tensors of one dispatch; `STEPS` maps names of nodes to functions over them. A node
whose result has no rows isn't run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from qwen3_a8w8.kernels.npu.attention import CacheLayer, Queries
from qwen3_a8w8.kernels.npu.kernels import NpuKernels, half
from qwen3_a8w8.kernels.program import Node, Program, Ref, RefKind
from qwen3_a8w8.kernels.signature import Dim, DType

_TORCH_DTYPES = {DType.INT8: torch.int8, DType.INT32: torch.int32}


class Values:
    """Tensors of one dispatch, of which kernels see the live rows.

    Args:
        program: what runs.
        kernels: of the device.
        args: arguments by name.
        dims: values of the run-time Dims.
        constants: as `NpuBackend.pack` returned them, by name.
        host: arguments that kernels need on the host, by name.
        num_live: rows of the counted Dim that are live; None: all are.
        keeps_outputs: `outputs` gets the outputs by name, and the arguments aren't written: a
            graph writes its own memory.
    """

    def __init__(
        self,
        program: Program,
        kernels: NpuKernels,
        args: Mapping[str, Tensor],
        dims: Mapping[str, int],
        constants: Mapping[str, Any],
        host: Mapping[str, list[int]],
        num_live: int | None,
        *,
        keeps_outputs: bool = False,
    ) -> None:
        self.kernels = kernels
        self.host = host
        self.outputs: dict[str, Tensor] = {}
        self._keeps_outputs = keeps_outputs
        self._args = args
        self._dims = dims
        self._constants = constants
        self._temps: dict[int, Tensor] = {}
        self._once: dict[tuple[Any, ...], Any] = {}
        self._counted = None if program.active_count is None else program.active_count[1]
        self._num_live = num_live

    def num_rows(self, ref: Ref) -> int:
        """Leading extent of a ref, live rows only."""
        extent = ref.shape[0]
        if extent is self._counted and self._num_live is not None:
            return self._num_live
        return self._dims[extent.name] if isinstance(extent, Dim) else extent

    def get(self, ref: Ref) -> Any:
        """The value of a ref: a tensor, or a packed constant."""
        if ref.kind is RefKind.TEMP:
            return self._temps[ref.index]
        if ref.kind is RefKind.CONST:
            return self._constants[ref.name]
        tensor = self._args[ref.name]
        is_counted = bool(ref.shape) and ref.shape[0] is self._counted
        return tensor[: self._num_live] if is_counted and self._num_live is not None else tensor

    def put(self, ref: Ref, value: Tensor) -> None:
        """Keeps a temporary, or writes an output argument."""
        if ref.kind is RefKind.TEMP:
            self._temps[ref.index] = value
        elif self._keeps_outputs:
            self.outputs[ref.name] = value
        else:
            self._args[ref.name][: value.shape[0]].copy_(value)

    def put_empty(self, node: Node) -> None:
        """Gives a node without rows its results."""
        for ref in node.outputs:
            if ref.kind is RefKind.TEMP:
                extents = [self._dims[e.name] if isinstance(e, Dim) else e for e in ref.shape[1:]]
                like = next(iter(self._args.values()))
                self._temps[ref.index] = torch.empty(
                    (0, *extents),
                    dtype=_TORCH_DTYPES.get(ref.dtype, torch.bfloat16),
                    device=like.device,
                )

    def once(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """What all layers share, made by the first of them."""
        if key not in self._once:
            self._once[key] = make()
        return self._once[key]

    def cache_layer(self, refs: tuple[Ref, ...], layer: int) -> CacheLayer:
        """One layer of the four cache arguments."""
        return CacheLayer(*(self._args[ref.name][layer] for ref in refs))


Step = Callable[[Values, Node], None]


def _embed(run: Values, node: Node) -> None:
    ids, table, *rows = map(run.get, node.inputs)
    if ids.dim() == 2:
        ids = ids[0] if rows and ids.shape[0] == 1 else ids[:, 0]
    if rows:
        ids = ids[: rows[0].shape[0]]
    run.put(node.outputs[0], torch.index_select(table, 0, ids.contiguous()))


def _copy(run: Values, node: Node) -> None:
    run.put(node.outputs[0], run.get(node.inputs[0]))


def _rms_norm(run: Values, node: Node) -> None:
    x, weight = map(run.get, node.inputs)
    run.put(node.outputs[0], run.kernels.rms_norm(x, weight, node.attributes["eps"]))


def _rms_norm_quant(run: Values, node: Node) -> None:
    x, weight = map(run.get, node.inputs)
    _put_both(
        run, node, run.kernels.quantize(run.kernels.rms_norm(x, weight, node.attributes["eps"]))
    )


def _quantize(run: Values, node: Node) -> None:
    _put_both(run, node, run.kernels.quantize(run.get(node.inputs[0])))


def _silu_mul_quant(run: Values, node: Node) -> None:
    _put_both(run, node, run.kernels.quantize(run.kernels.swiglu(run.get(node.inputs[0]))))


def _silu_mul(run: Values, node: Node) -> None:
    run.put(node.outputs[0], run.kernels.swiglu(run.get(node.inputs[0])))


def _put_both(run: Values, node: Node, results: tuple[Tensor, Tensor]) -> None:
    for ref, value in zip(node.outputs, results, strict=True):
        run.put(ref, value)


def _product(run: Values, node: Node) -> Tensor:
    """What a linear adds to its residual, or its result: [T, out] bfloat16."""
    if node.op.startswith("linear_bf16"):
        return run.kernels.matmul(*map(run.get, node.inputs[:2]))
    return run.kernels.linear(*map(run.get, node.inputs[:4]))


def _linear(run: Values, node: Node) -> None:
    run.put(node.outputs[0], _product(run, node))


def _linear_add(run: Values, node: Node) -> None:
    run.put(node.outputs[0], half(run.get(node.inputs[-1])) + _product(run, node))


def _add_then_norm(run: Values, add: Node, norm: Node) -> None:
    residual, weight = run.get(add.inputs[-1]), run.get(norm.inputs[1])
    total, x_q, x_scale = run.kernels.add_rms_norm_quant(
        _product(run, add), residual, weight, norm.attributes["eps"]
    )
    run.put(add.outputs[0], total)
    _put_both(run, norm, (x_q, x_scale))


def _concat(run: Values, node: Node) -> None:
    run.put(node.outputs[0], torch.cat([half(run.get(ref)) for ref in node.inputs], dim=1))


def _gather_rows(run: Values, node: Node) -> None:
    x, indices = map(run.get, node.inputs)
    run.put(node.outputs[0], torch.index_select(x, 0, indices))


def _lm_head(run: Values, node: Node) -> None:
    run.put(node.outputs[0], run.kernels.matmul(*map(run.get, node.inputs)))


def _qk_norm_rope_cache(run: Values, node: Node) -> None:
    qkv, q_norm, k_norm, rope, positions, slots = map(run.get, node.inputs)
    kernels, eps = run.kernels, node.attributes["eps"]
    cache = run.cache_layer(node.updates, int(node.attributes["layer"]))
    _, kv_heads, block_size, head_dim = cache.k.shape
    heads = half(qkv).view(qkv.shape[0], -1, head_dim)  # [T, heads + 2 * kv_heads, D]
    num_heads = heads.shape[1] - 2 * kv_heads
    table = run.once(
        ("rope", node.inputs[3].index, node.inputs[4].index),
        lambda: torch.index_select(rope, 0, positions),
    )
    head_slots = run.once(
        ("slots", node.inputs[5].index),
        lambda: kernels.attention.head_slots(slots, kv_heads, block_size),
    )
    q, k = kernels.rotate(
        kernels.rms_norm(heads[:, :num_heads], q_norm, eps),
        kernels.rms_norm(heads[:, num_heads : num_heads + kv_heads], k_norm, eps),
        table,
    )
    v = heads[:, num_heads + kv_heads :]
    if cache.is_int8:
        kernels.attention.write(cache, head_slots, kernels.quantize(k), kernels.quantize(v))
    else:
        kernels.attention.write(cache, head_slots, (k, None), (v, None))
    run.put(node.outputs[0], q.reshape(q.shape[0], -1))


def _attention(run: Values, node: Node) -> None:
    q, tables = run.get(node.inputs[0]), run.get(node.inputs[5])
    cache = run.cache_layer(node.inputs[1:5], int(node.attributes["layer"]))
    num_rows = q.shape[0]
    rows = run.host[node.inputs[7].name] if len(node.inputs) > 7 else None
    queries = Queries(tables, rows, run.host[node.inputs[6].name][:num_rows])
    heads = half(q).view(num_rows, -1, cache.k.shape[-1])
    run.put(node.outputs[0], run.kernels.attention.attend(heads, cache, queries).flatten(1))


def host_names(program: Program) -> set[str]:
    """Arguments whose numbers attention needs on the host: lengths, and sequences of rows."""
    return {
        ref.name
        for node in program.nodes
        if node.op.startswith("attention")
        for ref in node.inputs[6:]
    }


STEPS: dict[str, Step] = {
    "embed": _embed,
    "copy": _copy,
    "rms_norm": _rms_norm,
    "rms_norm_quant": _rms_norm_quant,
    "quantize": _quantize,
    "silu_mul_quant": _silu_mul_quant,
    "silu_mul": _silu_mul,
    "linear": _linear,
    "linear_add": _linear_add,
    "linear_bf16": _linear,
    "linear_bf16_add": _linear_add,
    "concat": _concat,
    "gather_rows": _gather_rows,
    "lm_head": _lm_head,
    "qk_norm_rope_cache": _qk_norm_rope_cache,
    "qk_norm_rope_cache_bf16": _qk_norm_rope_cache,
    "attention": _attention,
    "attention_bf16": _attention,
}
"""Every op but `sample`, which has an executable of its own."""


def run_nodes(program: Program, values: Values) -> None:
    """Runs all nodes in order, a sum and the norm of its result as one."""
    nodes = program.nodes
    index = 0
    while index < len(nodes):
        node = nodes[index]
        if values.num_rows(node.outputs[0]) == 0:
            values.put_empty(node)
        elif index + 1 < len(nodes) and _is_add_then_norm(node, nodes[index + 1]):
            index += 1
            _add_then_norm(values, node, nodes[index])
        else:
            STEPS[node.op](values, node)
        index += 1


def _is_add_then_norm(add: Node, norm: Node) -> bool:
    return (
        add.op in ("linear_add", "linear_bf16_add")
        and norm.op == "rms_norm_quant"
        and norm.inputs[0] is add.outputs[0]
    )
