"""Turns a callable into a `Program`.

The function runs once with symbolic tensors, so nothing is allocated or computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from qwen3_a8w8.errors import SignatureError
from qwen3_a8w8.kernels.ops import Ops
from qwen3_a8w8.kernels.program import Program, Ref
from qwen3_a8w8.kernels.signature import Direction, Signature, read_signature


def record(
    fn: Callable[..., Any], dims: Mapping[str, int], options: Mapping[str, int | float]
) -> Program:
    """Records a callable.

    Args:
        fn: see `signature.py`.
        dims: static extents by name.
        options: further numbers the function may look up, e.g. the norms' epsilon.

    Returns:
        The program.

    Raises:
        SignatureError: operands don't fit an op, an output parameter is never written, or
            something other than the output parameters is returned.
    """
    signature = read_signature(fn, dims)
    ops = Ops(signature.name, dims, options)
    args = {
        param.name: ops.argument(param.name, param.dtype, param.shape) for param in signature.params
    }
    returned = fn(ops, **args)
    _check_outputs(signature, ops, args, returned)
    return Program(signature, tuple(ops.refs), tuple(ops.nodes))


def _check_outputs(
    signature: Signature, ops: Ops, args: Mapping[str, Ref], returned: object
) -> None:
    outputs = {p.name for p in signature.params if p.spec.direction is Direction.OUT}
    found = returned if isinstance(returned, tuple) else (returned,)
    names = {
        r.name if isinstance(r, Ref) and args.get(r.name) == r else f"{r!r:.60}" for r in found
    }
    if names != outputs:
        raise SignatureError(
            f"{signature.name} returns {sorted(names)}, but declares the outputs "
            f"{sorted(outputs)}; return exactly the parameters annotated with Out"
        )
    written = {ref for node in ops.nodes for ref in node.outputs}
    unwritten = sorted(name for name in outputs if args[name] not in written)
    if unwritten:
        raise SignatureError(f"{signature.name} never writes its outputs {unwritten}")
