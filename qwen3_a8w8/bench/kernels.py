"""Measures the matrix products of a model's shape, each as a separate callable.

A dispatch runs one linear over several copies of its weight, one after the other, so
that every copy is evicted from all caches before it is read again, as in a model.
Time per linear = time of the dispatch / copies; the overhead of the dispatch (one
quantisation, one tiny projection that makes its result an output) is included.

Floor of an int8 linear: the larger of reading its weight and scales once, and its
multiply-adds at the measured int8 peak. Activations are small enough to stay in a
cache and aren't counted. Floor of lm_head (bfloat16): reading it once.

`roofline_ratio` = floor at the best limits seen in the run / best time: the kernel on an
undisturbed machine. `median_roofline_ratio` = floor at the median limits / median time.
Best is never compared with median.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor

from qwen3_a8w8.bench.machine import Machine, last_level_cache_bytes
from qwen3_a8w8.config import ModelConfig
from qwen3_a8w8.kernels.backend import Backend, CompiledCallable, Compiler
from qwen3_a8w8.kernels.ops import Ops
from qwen3_a8w8.kernels.program import ConstLayout, Ref
from qwen3_a8w8.kernels.signature import BFLOAT16, FLOAT32, INT32, Dim, In, Out, Static

ROW_COUNTS = (1, 16, 512)
"""Rows of activations: a decode step in a batch of 1 and of 16, and a prefill chunk."""

MAX_LM_HEAD_ROWS = 16
"""The engine computes logits of at most one batch."""

ROWS = Dim("ROWS")
IN, OUT, WIDTH = Static("IN"), Static("OUT"), Static("WIDTH")
_NUM_OUTPUTS = 16  # results that become an output; a multiple of the kernels' blocks

Activations = Annotated[Ref, In(FLOAT32, ROWS, IN)]
Indices = Annotated[Ref, In(INT32, 1)]
Projected = Annotated[Ref, Out(FLOAT32, 1, _NUM_OUTPUTS)]


def plain_linears(ops: Ops, x: Activations, indices: Indices, projected: Projected) -> Ref:
    """One int8 linear per copy of the weight, each on the same rows (as qkv and gate_up)."""
    x_q, x_scale = ops.quantize(x)
    for copy in range(ops.dims["COPIES"]):
        weight = ops.linear_weight(f"copy{copy}", ops.dims["OUT"], ops.dims["IN"])
        y = ops.linear(x_q, x_scale, weight)
    return _project(ops, y, indices, projected)


def residual_linears(
    ops: Ops,
    x: Activations,
    residual: Annotated[Ref, In(FLOAT32, ROWS, OUT)],
    indices: Indices,
    projected: Projected,
) -> Ref:
    """The same with the result added to a residual (as o and down)."""
    x_q, x_scale = ops.quantize(x)
    y = residual
    for copy in range(ops.dims["COPIES"]):
        weight = ops.linear_weight(f"copy{copy}", ops.dims["OUT"], ops.dims["IN"])
        y = ops.linear_add(x_q, x_scale, weight, y)
    return _project(ops, y, indices, projected)


def lm_head(
    ops: Ops,
    x: Activations,
    y: Annotated[Ref, Out(FLOAT32, ROWS, OUT)],
) -> Ref:
    """The output projection, once per copy."""
    for copy in range(ops.dims["COPIES"]):
        shape = (ops.dims["OUT"], ops.dims["IN"])
        ops.lm_head(x, ops.constant(f"copy{copy}", BFLOAT16, shape, ConstLayout.LM_HEAD), y)
    return y


def bench_kernels(
    config: ModelConfig,
    backend: Backend,
    machine: Machine,
    *,
    memory_bytes: int,
    row_counts: Sequence[int] = ROW_COUNTS,
    min_repeats: int = 5,
    min_seconds: float = 1.0,
    on_progress: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """Measures the four fused linears and lm_head.

    Args:
        config: the shape.
        backend: runs the kernels.
        machine: the limits; measured again before every linear, so that they are the best of
            the whole run.
        memory_bytes: most memory for the copies of one weight; there are at least two.
        row_counts: rows of activations.
        min_repeats: least dispatches of each case, after one that isn't counted.
        min_seconds: least time spent on each case.
        on_progress: called with the name of the next linear.

    Returns:
        One entry per linear and row count; times in seconds.
    """
    measured: list[tuple[_Case, list[float]]] = []
    for name, fn, shape in _linears(config):
        if on_progress is not None:
            on_progress(name)
        machine.measure()
        compiler = Compiler(backend)
        copies = _num_copies(_weight_bytes(fn, shape), memory_bytes)
        dims = {"OUT": shape[0], "IN": shape[1], "COPIES": copies}
        compiled = compiler.compile(fn, dims)
        _bind(compiled, backend)
        for rows in row_counts:
            if fn is lm_head and rows > MAX_LM_HEAD_ROWS:
                continue
            arguments = {
                key: value.to(backend.device) for key, value in _arguments(fn, shape, rows).items()
            }
            times = _time(compiled, arguments, min_repeats, min_seconds)
            case = _Case(name, fn, shape, rows, copies)
            measured.append((case, [each / copies for each in times]))
        compiled.close()
    machine.measure()
    return [case.result(machine, times) for case, times in measured]


class _Case:
    """One linear at one number of rows."""

    def __init__(
        self, name: str, fn: Callable[..., Any], shape: tuple[int, int], rows: int, copies: int
    ) -> None:
        self._fields = {
            "bench": "kernels",
            "op": name,
            "m": rows,
            "out_features": shape[0],
            "in_features": shape[1],
            "copies": copies,
        }
        self._bytes = _weight_bytes(fn, shape)
        self._macs = rows * shape[0] * shape[1]
        self._is_int8 = fn is not lm_head

    def result(self, machine: Machine, times: list[float]) -> dict[str, Any]:
        best, median = min(times), statistics.median(times)
        macs = self._macs if self._is_int8 else 0
        floor = machine.floor_s(self._bytes, macs)
        return {
            **self._fields,
            "bytes": self._bytes,
            "macs": self._macs,
            "repeats": len(times),
            "best_s": best,
            "median_s": median,
            "gbps": self._bytes / best / 1e9,
            "tmacs": self._macs / best / 1e12,
            "floor_s": floor,
            "roofline_ratio": floor / best,
            "median_roofline_ratio": machine.median_floor_s(self._bytes, macs) / median,
        }


def _linears(
    config: ModelConfig,
) -> Iterator[tuple[str, Callable[..., Any], tuple[int, int]]]:
    width, inner = config.hidden_size, config.intermediate_size
    yield "qkv_proj", plain_linears, (config.qkv_size, width)
    yield "o_proj", residual_linears, (width, config.q_size)
    yield "gate_up_proj", plain_linears, (2 * inner, width)
    yield "down_proj", residual_linears, (width, inner)
    yield "lm_head", lm_head, (config.vocab_size, width)


def _project(ops: Ops, y: Ref, indices: Ref, projected: Ref) -> Ref:
    weight = ops.constant(
        "projection", BFLOAT16, (_NUM_OUTPUTS, ops.dims["OUT"]), ConstLayout.LM_HEAD
    )
    return ops.lm_head(ops.gather_rows(y, indices), weight, projected)


def _weight_bytes(fn: Callable[..., Any], shape: tuple[int, int]) -> int:
    elements = shape[0] * shape[1]
    return 2 * elements if fn is lm_head else elements + 4 * shape[0]


def _num_copies(weight_bytes: int, memory_bytes: int) -> int:
    wanted = max(1 << 30, 2 * last_level_cache_bytes())
    return max(2, min(-(-wanted // weight_bytes), memory_bytes // weight_bytes))


def _bind(compiled: CompiledCallable, backend: Backend) -> None:
    """Packs a random constant of each shape for every use."""
    gen = torch.Generator().manual_seed(0)
    sources: dict[tuple[int, ...], Tensor] = {}
    constants: dict[str, Any] = {}
    for name, ref in compiled.constants.items():
        shape = tuple(int(str(extent)) for extent in ref.shape)
        if shape not in sources:
            sources[shape] = _random(ref, shape, gen)
        packed = backend.pack(ref, sources[shape])
        # An unpacked constant would share its memory among all copies.
        constants[name] = packed.clone() if packed is sources[shape] else packed
    compiled.bind(constants)


def _random(ref: Ref, shape: tuple[int, ...], gen: torch.Generator) -> Tensor:
    if ref.layout is ConstLayout.LINEAR_INT8:
        return torch.randint(-127, 128, shape, generator=gen, dtype=torch.int8)
    if ref.dtype is BFLOAT16:
        # Few random numbers, repeated: drawing a whole lm_head would take seconds.
        row = torch.randn(shape[1], generator=gen).to(torch.bfloat16)
        return row.expand(shape).contiguous()
    return torch.rand(shape, generator=gen)


def _arguments(fn: Callable[..., Any], shape: tuple[int, int], rows: int) -> dict[str, Tensor]:
    num_out, num_in = shape
    arguments = {"x": torch.randn(rows, num_in, generator=torch.Generator().manual_seed(1))}
    if fn is lm_head:
        return {**arguments, "y": torch.empty(rows, num_out)}
    if fn is residual_linears:
        arguments["residual"] = torch.zeros(rows, num_out)
    arguments["indices"] = torch.zeros(1, dtype=torch.int32)
    return {**arguments, "projected": torch.empty(1, _NUM_OUTPUTS)}


def _time(
    compiled: CompiledCallable, arguments: dict[str, Tensor], min_repeats: int, min_seconds: float
) -> list[float]:
    compiled(**arguments)
    times: list[float] = []
    while len(times) < min_repeats or sum(times) < min_seconds:
        start = time.perf_counter()
        compiled(**arguments)
        times.append(time.perf_counter() - start)
    return times
