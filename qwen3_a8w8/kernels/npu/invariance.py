"""Asks the device whether a row's bits depend on the rows beside it, and chooses forms accordingly.

Each kernel of a program runs on random rows with the program's own weights: rows alone, and in
batches. If bits differ, the kernel's next form is taken and asked again. Attention is asked at
several lengths, and prefill's form is kept only if it gives decode's bits: resuming a sequence
means to compute its decoded tokens again by prefill.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from qwen3_a8w8.kernels.npu.attention import CacheLayer, Queries
from qwen3_a8w8.kernels.npu.kernels import NormWeight, NpuKernels, as_norm
from qwen3_a8w8.kernels.program import Node, Program, Ref
from qwen3_a8w8.kernels.signature import BFLOAT16

BATCHES = (2, 3, 16, 64)
"""Rows of the batches that are compared with rows alone."""

_NUM_ROWS = max(BATCHES)
_WATCHED = (0, 1, 15, 63)
"""Rows that also run alone."""
_LENGTHS = (1, 2, 31, 32, 33, 100, 127, 128, 129, 255, 256, 257, 300, 511, 512, 513)

_REASONS = {"prefill_attention": "gives other bits than decode"}

Case = tuple[str, Callable[[], bool]]


def settle(program: Program, constants: Mapping[str, Any], kernels: NpuKernels, where: str) -> None:
    """Takes for each kernel of a program the fastest form whose rows don't depend on the batch.

    Args:
        program: of the model.
        constants: bound, by name.
        kernels: whose forms are chosen.
        where: device of tensors.
    """
    for kernel, holds in _cases(program, constants, kernels, where):
        while not holds():
            reason = _REASONS.get(kernel, "depends on the batch")
            if not kernels.forms.take_next(kernel, reason):
                kernels.forms.varying.add(kernel)
                break


def _cases(
    program: Program, constants: Mapping[str, Any], kernels: NpuKernels, where: str
) -> Iterable[Case]:
    """Simple kernels first: fused ones and attention are compared with what they choose."""
    generator = torch.Generator().manual_seed(0)

    def rows(*shape: int) -> Tensor:
        x = torch.randn(_NUM_ROWS, *shape, generator=generator).to(torch.bfloat16)
        return x.to(where)

    seen: set[tuple[Any, ...]] = set()
    for node in program.nodes:
        weight = constants.get(node.inputs[1].name) if len(node.inputs) > 1 else None
        is_fusable = isinstance(weight, NormWeight) and weight.half is not None
        key = (node.op, is_fusable, *(ref.shape[1:] for ref in node.inputs))
        if key in seen:
            continue
        seen.add(key)
        yield from _cases_of(node, constants, kernels, rows)
    attention = next((node for node in program.nodes if node.op.startswith("attention")), None)
    if attention is not None:
        yield from _attention_cases(attention, kernels, where, generator)


def _cases_of(
    node: Node, constants: Mapping[str, Any], kernels: NpuKernels, rows: Callable[..., Tensor]
) -> Iterable[Case]:
    width = node.inputs[0].shape[-1]
    if not isinstance(width, int):
        return
    if node.op in ("linear", "linear_add"):
        x_q, x_scale = kernels.quantize(rows(width))
        weight, scale = constants[node.inputs[2].name], constants[node.inputs[3].name]
        yield (
            "quant_matmul",
            lambda: _holds(lambda x, s: kernels.linear(x, s, weight, scale), x_q, x_scale),
        )
    elif node.op in ("linear_bf16", "linear_bf16_add", "lm_head"):
        table, x = constants[node.inputs[1].name], rows(width)
        yield "matmul", lambda: _holds(lambda x: kernels.matmul(x, table), x)
    elif node.op in ("rms_norm", "rms_norm_quant"):
        weight, x, eps = constants[node.inputs[1].name], rows(width), node.attributes["eps"]
        yield "rms_norm", lambda: _holds(lambda x: kernels.rms_norm(x, weight, eps), x)
        yield "dynamic_quant", lambda: _holds(kernels.quantize, x)
        if node.op == "rms_norm_quant" and as_norm(weight).half is not None:
            other = rows(width)
            yield (
                "add_rms_norm_quant",
                lambda: _holds(
                    lambda x, r: kernels.add_rms_norm_quant(x, r, weight, eps), x, other
                ),
            )
    elif node.op in ("quantize",):
        x = rows(width)
        yield "dynamic_quant", lambda: _holds(kernels.quantize, x)
    elif node.op in ("silu_mul", "silu_mul_quant"):
        x = rows(width)
        yield "swiglu", lambda: _holds(kernels.swiglu, x)
    elif node.op.startswith("qk_norm_rope_cache"):
        yield from _head_cases(node, constants, kernels, rows)


def _head_cases(
    node: Node, constants: Mapping[str, Any], kernels: NpuKernels, rows: Callable[..., Tensor]
) -> Iterable[Case]:
    kv_heads, head_dim = (int(str(node.updates[0].shape[i])) for i in (2, 4))
    num_heads = int(str(node.inputs[0].shape[1])) // head_dim - 2 * kv_heads
    q, k = rows(num_heads, head_dim), rows(kv_heads, head_dim)
    weight, eps = constants[node.inputs[1].name], node.attributes["eps"]
    rope = constants[node.inputs[3].name]
    table = rope[torch.arange(_NUM_ROWS, device=rope.device) % rope.shape[0]]
    yield "rms_norm", lambda: _holds(lambda x: kernels.rms_norm(x, weight, eps), q)
    yield "dynamic_quant", lambda: _holds(kernels.quantize, k)
    # In place: each call gets copies.
    yield (
        "rotary",
        lambda: _holds(lambda q, k, t: kernels.rotate(q.clone(), k.clone(), t), q, k, table),
    )


def _holds(call: Callable[..., Tensor | tuple[Tensor, ...]], *operands: Tensor) -> bool:
    """Whether rows alone have the bits of the same rows in batches."""
    whole = _tuple(call(*operands))
    for row in _WATCHED:
        alone = _tuple(call(*(each[row : row + 1].contiguous() for each in operands)))
        if not all(torch.equal(a[0], w[row]) for a, w in zip(alone, whole, strict=True)):
            return False
    for count in BATCHES[:-1]:
        # From the end, so that a row's place in the batch differs, too.
        some = _tuple(call(*(each[-count:].contiguous() for each in operands)))
        if not all(torch.equal(s, w[-count:]) for s, w in zip(some, whole, strict=True)):
            return False
    return True


def _tuple(result: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(result)


def _attention_cases(
    node: Node, kernels: NpuKernels, where: str, generator: torch.Generator
) -> Iterable[Case]:
    k_ref: Ref = node.inputs[1]
    kv_heads, block_size, head_dim = (int(str(extent)) for extent in k_ref.shape[2:])
    num_heads = int(str(node.inputs[0].shape[1])) // head_dim
    most_blocks = -(-max(_LENGTHS) // block_size)
    num_rows = len(_LENGTHS)
    num_blocks = num_rows * most_blocks + 1
    is_int8 = k_ref.dtype is not BFLOAT16

    def cache(shape: tuple[int, ...]) -> Tensor:
        if is_int8:
            return torch.randint(-127, 128, shape, generator=generator).to(torch.int8).to(where)
        return torch.randn(shape, generator=generator).to(torch.bfloat16).to(where)

    def scales() -> Tensor:
        shape = (num_blocks, kv_heads, block_size if is_int8 else 0)
        return ((torch.rand(shape, generator=generator) + 0.5) / 64).to(where)

    shape = (num_blocks, kv_heads, block_size, head_dim)
    layer = CacheLayer(cache(shape), cache(shape), scales(), scales())
    order = torch.randperm(num_blocks - 1, generator=generator).to(torch.int32) + 1
    tables = order.view(num_rows, most_blocks).contiguous().to(where)
    q = torch.randn(num_rows, num_heads, head_dim, generator=generator).to(torch.bfloat16).to(where)
    attend = kernels.attention.attend

    def decode_holds() -> bool:
        whole = attend(q, layer, Queries(tables, None, list(_LENGTHS)))
        for row, length in enumerate(_LENGTHS):
            one = Queries(tables[row : row + 1].contiguous(), None, [length])
            if not torch.equal(attend(q[row : row + 1], layer, one)[0], whole[row]):
                return False
        some = attend(q[-3:], layer, Queries(tables[-3:].contiguous(), None, list(_LENGTHS[-3:])))
        return torch.equal(some, whole[-3:])

    def prefill_holds() -> bool:
        length = _LENGTHS[-1]
        seen = list(range(length - num_rows + 1, length + 1))
        table = tables[:1].contiguous()
        chunk = attend(q, layer, Queries(table, [0] * num_rows, seen))
        decoded = attend(q, layer, Queries(table.expand(num_rows, -1).contiguous(), None, seen))
        return torch.equal(chunk, decoded)

    yield "attention", decode_holds
    yield "prefill_attention", prefill_holds
