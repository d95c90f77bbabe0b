"""Runs a handful of ops as a program of their own, with every result visible.

Ops hand out temporaries; here the temporaries that a test wants to see become
output parameters, filled with a sentinel before the run.
"""

from dataclasses import replace

import torch

from qwen3_a8w8.kernels.ops import Ops
from qwen3_a8w8.kernels.program import Program, Ref, RefKind
from qwen3_a8w8.kernels.reference import ReferenceBackend
from qwen3_a8w8.kernels.signature import (
    BFLOAT16,
    FLOAT32,
    INT8,
    INT32,
    INT64,
    Dim,
    In,
    InOut,
    Out,
    Param,
    Signature,
)

DTYPES = {
    torch.int8: INT8,
    torch.int32: INT32,
    torch.int64: INT64,
    torch.float32: FLOAT32,
    torch.bfloat16: BFLOAT16,
}
TORCH_DTYPES = {dtype: torch_dtype for torch_dtype, dtype in DTYPES.items()}
ROWS = Dim("ROWS")
SENTINEL = 77


def run_ops(backend, fn, per_row, others=None, constants=None, updated=(), num_active=None):
    """Records `fn(ops, refs)`, runs it and returns what its returned refs hold.

    Args:
        backend: where to run.
        fn: gets the op set and the refs of all inputs by name; returns a tuple of refs.
        per_row: inputs whose leading extent is the number of rows, by name.
        others: further inputs.
        constants: (tensor, layout) by name; they must be declared in `fn` by ops.constant.
        updated: names of inputs that are updated in place.
        num_active: number of live rows; None if all are.

    Returns:
        One tensor per returned ref; rows that weren't written hold SENTINEL.
    """
    inputs = {**per_row, **(others or {})}
    if num_active is not None:
        inputs["num_active"] = torch.tensor([num_active], dtype=torch.int32)
    num_rows = next(iter(per_row.values())).shape[0]
    ops = Ops("single", {}, {})
    refs, params = {}, []
    for name, tensor in inputs.items():
        shape = tuple(tensor.shape)
        if name in per_row:
            shape = (ROWS, *shape[1:])
        dtype = DTYPES[tensor.dtype]
        refs[name] = ops.argument(name, dtype, shape)
        counts = ROWS if name == "num_active" else None
        spec = InOut(dtype, *shape) if name in updated else In(dtype, *shape, counts=counts)
        params.append(Param(name, spec))
    returned = fn(ops, refs)
    exposed = {}
    for i, ref in enumerate(returned):
        exposed[ref.index] = Ref(ref.index, RefKind.ARG, f"result_{i}", ref.dtype, ref.shape)
        params.append(Param(f"result_{i}", Out(ref.dtype, *ref.shape)))

    def swap(group):
        return tuple(exposed.get(ref.index, ref) for ref in group)

    nodes = tuple(
        replace(node, inputs=swap(node.inputs), outputs=swap(node.outputs)) for node in ops.nodes
    )
    program = Program(Signature("single", tuple(params)), swap(ops.refs), nodes)
    results = {
        f"result_{i}": torch.full(
            [num_rows if extent is ROWS else extent for extent in ref.shape],
            SENTINEL,
            dtype=TORCH_DTYPES[ref.dtype],
        )
        for i, ref in enumerate(returned)
    }
    executable = backend.lower(program)
    declared = program.constants
    packed = {
        name: backend.pack(declared[name], tensor) for name, tensor in (constants or {}).items()
    }
    executable.bind(packed)
    args = {name: tensor.to(backend.device) for name, tensor in {**inputs, **results}.items()}
    executable.run(args, {"ROWS": num_rows})
    executable.close()
    for name in updated:
        inputs[name].copy_(args[name])
    return tuple(args[name].cpu() for name in results)


def reference():
    return ReferenceBackend()


def assert_close(got, want, relative):
    """Largest deviation, relative to the largest magnitude wanted."""
    error = (got.double() - want.double()).abs().max()
    limit = relative * want.double().abs().max().clamp_min(1e-30)
    assert error <= limit, f"largest error {error:g}, allowed {limit:g}"
