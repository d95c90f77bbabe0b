"""The interface of every checkpoint format, and the checks that all formats share.

`CheckpointReader` is the interface: one class per format, one file per class,
registered in `checkpoint.py`. This module doesn't know about any format.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, TypeVar

import torch

from qwen3_a8w8.checkpoint.model_files import ModelFiles
from qwen3_a8w8.checkpoint.names import EMBED_TOKENS, LM_HEAD, is_harmless_extra
from qwen3_a8w8.checkpoint.safetensors_file import SafetensorsFiles
from qwen3_a8w8.config import ModelConfig
from qwen3_a8w8.errors import CheckpointError
from qwen3_a8w8.quantization.int8 import fold_zero_point

FLOAT_DTYPES = ("BF16", "F16", "F32")
"""Header dtypes that embedding, norms, lm_head and scales may have."""


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


@dataclass(frozen=True, slots=True)
class FloatLinear:
    """The weight of a linear that the checkpoint keeps in floating point.

    Attributes:
        weight: `[out, in]` bfloat16, contiguous (rounded, if it is stored in float32 or float16).
            It may share memory with the mapped file: don't write to it.
    """

    weight: torch.Tensor


Linear = QuantizedLinear | FloatLinear


@dataclass(frozen=True, slots=True)
class LinearScheme:
    """How a checkpoint stores one linear, known from its headers and config alone.

    Attributes:
        is_float: it runs in bfloat16 and `linear` returns a `FloatLinear`.
        description: for reports, such as "int8 per channel".
        has_zero_point: its weight is asymmetric; see `quantization.int8.fold_zero_point`.
    """

    is_float: bool
    description: str
    has_zero_point: bool = False


FLOAT_SCHEME = LinearScheme(is_float=True, description="floating point, run in bf16")


class CheckpointReader(Protocol):
    """One checkpoint format."""

    format: ClassVar[str]
    """Name of the format in reports, such as "hf-float"."""

    files: SafetensorsFiles

    notes: tuple[str, ...]
    """What a user should know about how the checkpoint is read, a sentence each."""

    schemes: dict[tuple[int, str], LinearScheme]
    """How each linear is stored, by layer and name."""

    aliases: dict[str, str]
    """Tensors that are read in place of others: model's name -> stored name."""

    @classmethod
    def recognises(cls, model: ModelFiles) -> bool:
        """Whether the checkpoint has this format; details may still be rejected later."""
        ...

    def __init__(self, model: ModelFiles) -> None:
        """Opens the files and checks everything that headers and config contain.

        Args:
            model: a checkpoint that `recognises` accepts.

        Raises:
            CheckpointError: unsupported scheme; a missing, misshapen or unexpected tensor.
        """
        ...

    def linear(self, layer: int, name: str) -> Linear:
        """Reads (and if necessary quantises) one linear of one layer.

        Raises:
            CheckpointError: its values aren't finite or can't be read.
        """
        ...


Reader = TypeVar("Reader", bound=CheckpointReader)


def open_reader(model: ModelFiles, reader_class: type[Reader]) -> tuple[ModelFiles, Reader]:
    """Opens a checkpoint of a known format.

    A stored lm_head that differs from the embedding is used, even if config.json says that they
    are tied: so does transformers, and dropping it would change the model.

    Args:
        model: a checkpoint that the class recognises.
        reader_class: its format.

    Returns:
        The model, untied if it has an lm_head of its own; and its reader, with a note on it.

    Raises:
        CheckpointError: see `CheckpointReader`.
    """
    reader = reader_class(model)
    if not (model.config.tie_word_embeddings and _has_own_lm_head(reader.files)):
        return model, reader
    reader.files.close()
    model = replace(model, config=replace(model.config, tie_word_embeddings=False))
    reader = reader_class(model)
    reader.notes += (
        f"tie_word_embeddings is true, but {LM_HEAD} differs from {EMBED_TOKENS}; both are used",
    )
    return model, reader


def _has_own_lm_head(files: SafetensorsFiles) -> bool:
    if LM_HEAD not in files.infos:
        return False
    if files.infos[LM_HEAD].shape != files.infos[EMBED_TOKENS].shape:
        return True  # opened as its own, it is refused by its shape
    lm_head, embedding = files.read(LM_HEAD), files.read(EMBED_TOKENS)
    # Where they differ, the first rows tell, and the others aren't read.
    return not all(
        torch.equal(lm_head[rows].float(), embedding[rows].float())
        for rows in (slice(0, 256), slice(256, None))
    )


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
    files: SafetensorsFiles,
    config: ModelConfig,
    expected: Mapping[str, ExpectedTensor],
    optional: Mapping[str, ExpectedTensor] | None = None,
) -> None:
    """Compares the headers with what the format expects, before anything is read.

    Args:
        files: the checkpoint's files.
        config: the architecture.
        expected: required tensors.
        optional: further allowed tensors.

    Raises:
        CheckpointError: a tensor is missing, has another shape or dtype, or wasn't expected.
    """
    optional = optional or {}
    missing = [name for name in expected if name not in files.infos]
    if missing:
        name = missing[0]
        raise CheckpointError(
            f"{files.main_file}: tensor {name} is missing: expected {_describe(expected[name])}, "
            f"found none{_and_more(missing)}"
        )
    found = {name: wanted for name, wanted in optional.items() if name in files.infos}
    for name, wanted in {**expected, **found}.items():
        info = files.infos[name]
        if info.shape not in wanted.shapes or info.dtype not in wanted.dtypes:
            raise CheckpointError(
                f"{info.path}: tensor {name}: expected {_describe(wanted)}, "
                f"found {info.dtype} {list(info.shape)}"
            )
    extra = [
        name
        for name in files.infos
        if name not in expected and name not in found and not is_harmless_extra(config, name)
    ]
    if extra:
        info = files.infos[extra[0]]
        raise CheckpointError(
            f"{info.path}: tensor {info.name}: expected no such tensor in this model, found "
            f"{info.dtype} {list(info.shape)}{_and_more(extra)}; ignoring it would change the "
            "model, so the checkpoint is refused"
        )


def float_expectations(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, ExpectedTensor]:
    """The expectation "this shape, any of `FLOAT_DTYPES`" for each tensor of `shapes`."""
    return {name: ExpectedTensor((shape,), FLOAT_DTYPES) for name, shape in shapes.items()}


def read_float_linear(files: SafetensorsFiles, tensor: str) -> FloatLinear:
    """Reads a weight that stays in floating point.

    Raises:
        CheckpointError: its values aren't finite or can't be read.
    """
    weight = files.read(tensor).to(torch.bfloat16)
    check_finite(files, tensor, weight)
    return FloatLinear(weight)


def read_int8_linear(
    files: SafetensorsFiles, weight: str, scale: str, zero_point: str | None = None
) -> QuantizedLinear:
    """Reads an int8 weight with a scale per output channel (or one for all).

    Args:
        files: where they are.
        weight: name of the int8 tensor `[out, in]`; q may span -128..127.
        scale: name of the scales `[out]`, `[out, 1]`, or of a single one.
        zero_point: name of the zero points, shaped like the scales; None if there are none.

    Raises:
        CheckpointError: scales are negative or not finite, or a tensor can't be read.
    """
    w_q = files.read(weight)
    num_out = w_q.shape[0]
    w_scale = files.read(scale).to(torch.float32, copy=True).reshape(-1)
    check_finite(files, scale, w_scale)
    if bool((w_scale < 0).any()):
        raise CheckpointError(
            f"{files.infos[scale].path}: tensor {scale}: expected scales of at least 0, found "
            f"{float(w_scale.min())}; the checkpoint is damaged"
        )
    w_scale = w_scale.expand(num_out).contiguous()
    if zero_point is None:
        return QuantizedLinear(w_q, w_scale)
    offsets = files.read(zero_point).float().reshape(-1).expand(num_out)
    if bool((offsets != offsets.round()).any() | (offsets.abs() > 128).any()):
        raise CheckpointError(
            f"{files.infos[zero_point].path}: tensor {zero_point}: expected whole numbers from "
            "-128 to 127; the checkpoint is damaged"
        )
    if not bool(offsets.any()):
        return QuantizedLinear(w_q, w_scale)
    return QuantizedLinear(*fold_zero_point(w_q, w_scale, offsets))


def check_finite(files: SafetensorsFiles, name: str, tensor: torch.Tensor) -> None:
    """Refuses NaN and infinity.

    Args:
        files: where the tensor comes from, for the message.
        name: its name.
        tensor: any shape, float.

    Raises:
        CheckpointError: a value isn't finite.
    """
    # aminmax propagates NaN and allocates no mask of the embedding's size.
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
