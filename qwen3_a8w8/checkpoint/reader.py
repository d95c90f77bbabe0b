"""What every checkpoint format gives, and the checks that all formats share.

`CheckpointReader` is the interface: one class per format, one file per class,
registered in `checkpoint.py`. This module knows no format.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch

from qwen3_a8w8.checkpoint.model_files import ModelFiles
from qwen3_a8w8.checkpoint.names import is_harmless_extra
from qwen3_a8w8.checkpoint.safetensors_file import SafetensorsFiles
from qwen3_a8w8.config import ModelConfig
from qwen3_a8w8.errors import CheckpointError

FLOAT_DTYPES = ("BF16", "F16", "F32")
"""Header dtypes in which embedding, norms, lm_head and scales may be stored."""


@dataclass(frozen=True, slots=True)
class QuantizedLinear:
    """The weight of one linear: `w = w_q * w_scale[:, None]`.

    Attributes:
        w_q: `[out, in]` int8, contiguous, -128..127 (our own quantiser writes no -128). It may
            share memory with the mapped file: don't write to it.
        w_scale: `[out]` float32, finite, not negative.
    """

    w_q: torch.Tensor
    w_scale: torch.Tensor


class CheckpointReader(Protocol):
    """One checkpoint format."""

    format: ClassVar[str]
    """Name of the format in reports, such as "hf-float"."""

    files: SafetensorsFiles

    @classmethod
    def recognises(cls, model: ModelFiles) -> bool:
        """Whether the checkpoint is of this format; its details may still be refused later."""
        ...

    def __init__(self, model: ModelFiles) -> None:
        """Opens the files and checks everything that headers and config can tell.

        Args:
            model: a checkpoint that `recognises` said yes to.

        Raises:
            CheckpointError: unsupported scheme; a missing, misshapen or unexpected tensor.
        """
        ...

    def linear(self, layer: int, name: str) -> QuantizedLinear:
        """Reads (and if need be quantises) one linear of one layer.

        Raises:
            CheckpointError: its values aren't finite or can't be read.
        """
        ...


@dataclass(frozen=True, slots=True)
class ExpectedTensor:
    """What a format expects of one tensor.

    Attributes:
        shapes: the shapes it may have.
        dtypes: the header dtypes it may have.
    """

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]


def check_tensors(
    files: SafetensorsFiles, config: ModelConfig, expected: Mapping[str, ExpectedTensor]
) -> None:
    """Compares the headers with what the format expects, before anything is read.

    Raises:
        CheckpointError: a tensor is missing, has another shape or dtype, or wasn't expected.
    """
    missing = [name for name in expected if name not in files.infos]
    if missing:
        name = missing[0]
        raise CheckpointError(
            f"{files.main_file}: tensor {name} is missing: expected {_describe(expected[name])}, "
            f"found none{_and_more(missing)}"
        )
    for name, wanted in expected.items():
        info = files.infos[name]
        if info.shape not in wanted.shapes or info.dtype not in wanted.dtypes:
            raise CheckpointError(
                f"{info.path}: tensor {name}: expected {_describe(wanted)}, "
                f"found {info.dtype} {list(info.shape)}"
            )
    extra = [
        name for name in files.infos if name not in expected and not is_harmless_extra(config, name)
    ]
    if extra:
        info = files.infos[extra[0]]
        raise CheckpointError(
            f"{info.path}: tensor {info.name}: expected no such tensor in this model, found "
            f"{info.dtype} {list(info.shape)}{_and_more(extra)}; leaving it out would change the "
            "model, so the checkpoint is refused"
        )


def float_expectations(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, ExpectedTensor]:
    """The expectation "this shape, any of `FLOAT_DTYPES`" for each tensor of `shapes`."""
    return {name: ExpectedTensor((shape,), FLOAT_DTYPES) for name, shape in shapes.items()}


def check_finite(files: SafetensorsFiles, name: str, tensor: torch.Tensor) -> None:
    """Refuses NaN and infinity.

    Args:
        files: where the tensor comes from, for the message.
        name: its name.
        tensor: any shape, float.

    Raises:
        CheckpointError: a value isn't finite.
    """
    # aminmax propagates NaN and makes no mask the size of the embedding.
    low, high = torch.aminmax(tensor)
    if not bool(torch.isfinite(low) & torch.isfinite(high)):
        raise CheckpointError(
            f"{files.infos[name].path}: tensor {name}: expected finite values, found NaN or "
            "infinity; the checkpoint is damaged"
        )


def _describe(wanted: ExpectedTensor) -> str:
    shapes = " or ".join(str(list(shape)) for shape in wanted.shapes)
    return f"{'/'.join(wanted.dtypes)} {shapes}"


def _and_more(names: Iterable[str]) -> str:
    count = len(list(names)) - 1
    return f" (and {count} more like it)" if count else ""
