"""The compile contract: annotations in, checked calls out."""

from typing import Annotated

import pytest
import torch

from qwen3_a8w8.config import ModelConfig
from qwen3_a8w8.errors import SignatureError, UnsupportedBatchSizeError
from qwen3_a8w8.kernels.backend import Compiler
from qwen3_a8w8.kernels.cpu.backend import CpuBackend
from qwen3_a8w8.kernels.ops import Ops
from qwen3_a8w8.kernels.program import Ref
from qwen3_a8w8.kernels.record import record
from qwen3_a8w8.kernels.reference import ReferenceBackend
from qwen3_a8w8.kernels.signature import FLOAT32, INT32, Dim, In, Out, Static, read_signature
from qwen3_a8w8.model import qwen3

ROWS = Dim("ROWS", choices=(1, 4), error=UnsupportedBatchSizeError)
WIDTH = Static("WIDTH")
QWEN3_14B = ModelConfig(5120, 40, 40, 8, 128, 17408, 151936)


def gather(
    ops: Ops,
    x: Annotated[Ref, In(FLOAT32, ROWS, WIDTH)],
    indices: Annotated[Ref, In(INT32, ROWS)],
    out: Annotated[Ref, Out(FLOAT32, ROWS, WIDTH)],
) -> Ref:
    """out = w x[indices]: a gather, then the lm_head, which writes an output."""
    weight = ops.constant("w", qwen3.BFLOAT16, (ops.dims["WIDTH"], ops.dims["WIDTH"]))
    return ops.lm_head(ops.gather_rows(x, indices), weight, out)


@pytest.fixture
def compiled():
    return Compiler(ReferenceBackend()).compile(gather, {"WIDTH": 8})


def arguments(rows=4, width=8):
    return {
        "x": torch.arange(rows * width, dtype=torch.float32).view(rows, width),
        "indices": torch.arange(rows, dtype=torch.int32).flip(0).contiguous(),
        "out": torch.zeros(rows, width),
    }


def test_call_with_fitting_arguments_writes_the_output(compiled):
    compiled.bind({"w": torch.eye(8, dtype=torch.bfloat16)})
    args = arguments()
    compiled(**args)
    assert torch.equal(args["out"], args["x"].flip(0))


def test_call_before_bind_is_refused(compiled):
    with pytest.raises(SignatureError, match="no constants yet"):
        compiled(**arguments())


def test_bind_without_a_constant_names_it(compiled):
    with pytest.raises(SignatureError, match="'w'"):
        compiled.bind({})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": torch.zeros(4, 8, dtype=torch.float64)}, "'x' is float64, expected float32"),
        ({"x": torch.zeros(4, 9)}, "'x' has 9 in dimension 1, expected 8"),
        ({"x": torch.zeros(4, 8, 1)}, r"'x' has shape \(4, 8, 1\), expected 2 dimensions"),
        ({"x": torch.zeros(8, 4).T}, "'x' isn't contiguous"),
        ({"x": torch.zeros(4, 8, device="meta")}, "'x' is on 'meta', expected 'cpu'"),
        (
            {"indices": torch.zeros(1, dtype=torch.int32)},
            "'indices' has ROWS = 1 in dimension 0, but 'x' has ROWS = 4",
        ),
    ],
)
def test_call_with_a_misfit_names_parameter_and_expectation(compiled, changes, message):
    with pytest.raises(SignatureError, match=message):
        compiled(**{**arguments(), **changes})


def test_call_with_missing_and_unknown_arguments_names_both(compiled):
    args = arguments()
    args["extra"] = args.pop("x")
    with pytest.raises(SignatureError, match=r"missing arguments \['x'\], unknown .*'extra'"):
        compiled(**args)


@pytest.mark.parametrize("rows", [2, 3, 5, 16])
def test_call_with_an_uncompiled_batch_size_raises_the_dims_error(compiled, rows):
    with pytest.raises(UnsupportedBatchSizeError, match=f"ROWS is {rows}"):
        compiled(**arguments(rows))


def test_missing_static_dim_names_parameter_and_dim():
    with pytest.raises(SignatureError, match="'x' needs the static dim WIDTH"):
        read_signature(gather, {})


def test_parameter_without_spec_is_named():
    def bad(ops, x: Ref) -> Ref:
        return x

    bad.__annotations__["x"] = Ref
    with pytest.raises(SignatureError, match="'x' has 0 specs"):
        read_signature(bad, {})


def test_returning_anything_but_the_outputs_is_refused():
    def bad(
        ops: Ops,
        x: Annotated[Ref, In(FLOAT32, 1, 8)],
        out: Annotated[Ref, Out(FLOAT32, 1, 8)],
    ) -> Ref:
        return x

    with pytest.raises(SignatureError, match=r"returns \['x'\], but declares .*'out'"):
        record(bad, {}, {})


def test_output_that_is_never_written_is_refused():
    def bad(ops: Ops, out: Annotated[Ref, Out(FLOAT32, 1, 8)]) -> Ref:
        return out

    with pytest.raises(SignatureError, match=r"never writes its outputs \['out'\]"):
        record(bad, {}, {})


def test_compile_is_cached_by_function_dims_options():
    compiler = Compiler(ReferenceBackend())
    first = compiler.compile(gather, {"WIDTH": 8})
    assert compiler.compile(gather, {"WIDTH": 8}) is first
    assert compiler.compile(gather, {"WIDTH": 16}) is not first
    assert compiler.compile(gather, {"WIDTH": 8}, {"eps": 1.0}) is not first


def resident_bytes():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096


def test_compiling_qwen3_14b_allocates_no_tensors():
    cache_dims = qwen3.kv_cache_dims(32, is_bf16=False)
    dims = {**QWEN3_14B.static_dims(), **cache_dims, "MAX_POSITIONS": 40960}
    compiler = Compiler(CpuBackend())
    before = resident_bytes()
    for fn in (qwen3.prefill, qwen3.decode, qwen3.sample):
        compiler.compile(fn, dims, {"rms_norm_eps": 1e-6})
    assert resident_bytes() - before < 64 * 2**20
    compiler.close()
