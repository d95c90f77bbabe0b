"""The whole prefill and decode of Qwen3-14B on device "meta": the wheel's shape functions take it.

Nothing is computed or allocated; a host tensor among the device's, or a float64, is refused.
"""

import pytest
import torch
from torch_npu._emulation.device_rules import DeviceRules
from torch_npu._emulation.options import options

from qwen3_a8w8.checkpoint.shapes import SHAPES
from qwen3_a8w8.kernels.npu.device import NpuDevice
from qwen3_a8w8.kernels.npu.forms import FORMS, Forms
from qwen3_a8w8.kernels.npu.kernels import NormWeight, NpuKernels
from qwen3_a8w8.kernels.npu.lowering import Values, host_names, run_nodes
from qwen3_a8w8.kernels.program import ConstLayout
from qwen3_a8w8.kernels.record import record
from qwen3_a8w8.kernels.signature import BFLOAT16, FLOAT32, INT8, INT32, Dim
from qwen3_a8w8.model import qwen3

pytestmark = pytest.mark.skipif(options.device != "meta", reason="needs NPU_EMULATION=device=meta")

DTYPES = {BFLOAT16: torch.bfloat16, FLOAT32: torch.float32, INT8: torch.int8, INT32: torch.int32}
CONTEXT = 3350


def empty(shape, dtype):
    return torch.empty(shape, dtype=DTYPES[dtype], device="meta")


def constant(kernels, ref):
    if ref.layout is ConstLayout.LINEAR_INT8:
        return kernels.pack_int8(empty(ref.shape, ref.dtype))
    if ref.dtype is FLOAT32 and len(ref.shape) == 1:
        return NormWeight(empty(ref.shape, FLOAT32), empty(ref.shape, BFLOAT16))
    return empty(ref.shape, ref.dtype)


@pytest.mark.parametrize("is_bf16", [False, True], ids=["int8", "bf16"])
@pytest.mark.parametrize("slow", [False, True], ids=["fastest forms", "slowest forms"])
@pytest.mark.parametrize("rows", [1, 16, "prefill"])
def test_program_runs_at_14b(rows, slow, is_bf16):
    forms = Forms()
    for kernel in FORMS if slow else ():
        forms.take_slowest(kernel, "is asked for")
    kernels = NpuKernels(NpuDevice(), forms, reads_int8_cache=True)
    dims = {
        **SHAPES["qwen3-14b"].static_dims(),
        **qwen3.kv_cache_dims(128, is_bf16=is_bf16),
        "MAX_POSITIONS": 32768,
    }
    fn = qwen3.prefill if rows == "prefill" else qwen3.decode
    program = record(fn, dims, {"rms_norm_eps": 1e-6})
    extents = {
        **dict.fromkeys(("BATCH", "ROWS"), rows),
        **{"PREFILL_TOKENS": 48, "NUM_SEQS": 2, "NUM_LOGITS": 2},
        **{"NUM_BLOCKS": 1000, "MAX_BLOCKS_PER_SEQ": 32},
    }
    args = {
        param.name: empty(
            [extents[e.name] if isinstance(e, Dim) else e for e in param.shape], param.spec.dtype
        )
        for param in program.signature.params
    }
    # Two chunks: the end of a long context, and a short prompt.
    lengths = [CONTEXT - 40 + i + 1 for i in range(40)] + list(range(1, 9))
    host = {
        "seq_lens": [CONTEXT] * 16 if rows == 16 else [CONTEXT],
        "context_lens": lengths,
        "seq_index": [0] * 40 + [1] * 8,
    }
    host = {name: host[name] for name in host_names(program)}
    constants = {name: constant(kernels, ref) for name, ref in program.constants.items()}
    values = Values(program, kernels, args, extents, constants, host, None, keeps_outputs=True)
    with DeviceRules():
        run_nodes(program, values)
    logits = values.outputs["logits"]
    expected = (2 if rows == "prefill" else rows, dims["VOCAB"])
    assert (tuple(logits.shape), logits.device.type) == (expected, "meta")
