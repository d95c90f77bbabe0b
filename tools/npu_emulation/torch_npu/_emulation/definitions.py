"""Defines the ops of namespace `npu` from a wheel's schemas, with the wheel's own metas."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import npu_schemas
import torch
from torch.library import Library

import torch_npu
from torch_npu._emulation import memory
from torch_npu._emulation.options import options

_FUNCTION = re.compile(r"^[-\s]*func:\s*(?P<schema>[A-Za-z_]\w*(?:\.\w+)?\(.*)$")

_SELF = re.compile(r"((?:Tensor|Scalar)\S*) self(?=[,)=])")
_OUTPUT = re.compile(r", (?P<star>\*, )?Tensor\([a-z]!\) \w+(?=[,)])")

F = TypeVar("F", bound=Callable[..., Any])

_definitions = Library("npu", "DEF")
_kernels = Library("npu", "IMPL", "CPU")
_meta_libraries: list[object] = []

defined: dict[str, str] = {}
"""Schemas by name and overload."""
undefined: dict[str, str] = {}
"""Names that torch can't define here, with its reason: types of a newer torch."""


def schemas_of(directory: Path) -> dict[str, str]:
    """The schemas in a wheel's two lists, by name and overload.

    Only functions of torch_npu's own namespace are returned: the lists also name functions of
    aten that a device implements, without their schemas.
    """
    found: dict[str, str] = {}
    for name in ("npu_native_functions.yaml", "npu_native_functions_by_codegen.yaml"):
        section = ""
        for line in (directory / name).read_text(encoding="utf-8").splitlines():
            if line and not line[0].isspace() and not line.startswith("-"):
                section = line.split(":", 1)[0]
                continue
            match = _FUNCTION.match(line)
            if match and section in ("custom", "symint", "quant"):
                schema = registered(match["schema"])
                found.setdefault(schema.split("(", 1)[0], schema)
    return found


def registered(schema: str) -> str:
    """The schema as torch_npu registers it, which differs from the list in two ways.

    `self` is named `input`, and several output arguments are one list `out`, which isn't marked
    as written to. Source: the schemas in the binaries of 2.7.1.post4 and 2.14.0.
    """
    schema = _SELF.sub(r"\1 input", schema)
    if not schema.split("(", 1)[0].endswith(".out"):
        return schema
    arguments, returned = schema.split(" -> ", 1)
    outputs = list(_OUTPUT.finditer(arguments))
    if len(outputs) < 2:
        return schema
    star = outputs[0]["star"] or ""
    returned = re.sub(r"\([a-z]!\)", "", returned)
    return f"{arguments[: outputs[0].start()]}, {star}Tensor[] out) -> {returned}"


def define_ops() -> None:
    """Defines every op of the emulated version, and registers the metas of its wheel.

    Raises:
        ImportError: the schemas were never fetched.
    """
    directory = npu_schemas.cached(options.version)
    if directory is None:
        raise ImportError(
            f"the emulation of torch_npu {options.version} needs that wheel's schemas; "
            "run `python tools/npu_emulation/npu_schemas.py` once"
        )
    for name, schema in schemas_of(directory).items():
        if name.split(".")[0] in options.missing:
            continue
        try:
            _definitions.define(schema)
        except RuntimeError as error:
            undefined[name] = str(error).splitlines()[0]
        else:
            defined[name] = schema
    _register_metas(directory / "_meta_registrations.py")


def _register_metas(path: Path) -> None:
    """Runs the wheel's file of metas; ops that aren't defined here are left out."""
    original = Library.impl

    def impl_if_defined(library: Library, name: Any, fn: Any, key: str = "", **more: Any) -> Any:
        plain = name if isinstance(name, str) else name.name()
        plain = plain.removeprefix("npu::")
        if library.ns == "npu" and plain not in defined:
            return None
        if library.ns != "npu":
            return None  # metas of aten's functions: those of CPU torch stay
        return original(library, name, fn, key, **more)

    spec = importlib.util.spec_from_file_location("torch_npu.op_plugin_metas", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    Library.impl = impl_if_defined  # type: ignore[method-assign]
    try:
        spec.loader.exec_module(module)
    finally:
        Library.impl = original  # type: ignore[method-assign]
    _meta_libraries.append(module)


_calls = 0
_is_lost = False


def count_call(name: str) -> None:
    """Counts the calls of ops, of which `lost_after` or `lost_when` make one lose the device.

    Raises:
        RuntimeError: as torch_npu words it; 507035 is a code of a faulty device.
        torch.OutOfMemoryError: more memory is in use than the device has.
    """
    global _calls, _is_lost
    _calls += 1
    if options.lost_when and not _is_lost:
        with contextlib.suppress(FileNotFoundError):
            os.rename(options.lost_when, f"{options.lost_when}.{os.getpid()}")
            _is_lost = True
    if is_lost():
        raise lost_device(name)
    memory.check_room(name)


def lost_device(where: str) -> RuntimeError:
    """The error of every call after a device was lost."""
    return RuntimeError(
        f"{where}: NPU function error: aclrtSynchronizeDeviceWithTimeout, error code is 507035\n"
        "[Error]: The vector core execution is abnormal.\n"
        "        Rectify the fault based on the error information in the ascend log."
    )


def is_lost() -> bool:
    """Whether the device is lost by now."""
    return _is_lost or 0 <= options.lost_after < _calls


def num_calls() -> int:
    """Calls of ops so far."""
    return _calls


def kernel(name: str) -> Callable[[F], F]:
    """Registers a CPU kernel for an op, by name or name.overload."""

    def register(fn: F) -> F:
        if name not in defined:
            return fn

        def counted(*args: Any, **kwargs: Any) -> Any:
            count_call(name)
            return fn(*args, **kwargs)

        counted.__name__ = name
        _kernels.impl(name, counted)
        return fn

    return register


def meta(name: str) -> Callable[[F], F]:
    """Registers a meta for an op whose wheel has none."""

    def register(fn: F) -> F:
        has_meta = torch._C._dispatch_has_kernel_for_dispatch_key(f"npu::{name}", "Meta")
        if name in defined and not has_meta:
            library = Library("npu", "IMPL", "Meta")
            library.impl(name, fn)
            _meta_libraries.append(library)
        return fn

    return register


def expose_ops() -> None:
    """Makes `torch_npu.NAME` of every op; some stand under `torch_npu.npu` in older wheels."""
    for name in {name.split(".")[0] for name in defined}:
        if not hasattr(torch_npu, name):
            setattr(torch_npu, name, getattr(torch.ops.npu, name))
