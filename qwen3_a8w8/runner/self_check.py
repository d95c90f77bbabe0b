"""Compares a tiny random model on the chosen kernels with the reference before a real one loads.

Takes milliseconds and a few hundred kilobytes. Catches a wrong build, an instruction
path that misbehaves on this machine, or a broken experimental flag before they corrupt
every output. `qwen3-a8w8 check` is the thorough test.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from qwen3_a8w8.errors import KernelUnavailableError
from qwen3_a8w8.experimental import FLAGS, PROMPT_LOOKUP
from qwen3_a8w8.kernels.backend import Backend
from qwen3_a8w8.kernels.reference import ReferenceBackend
from qwen3_a8w8.runner.tiny_model import DIMS, TinyModel

logger = logging.getLogger(__name__)

TOLERANCE = 2e-2
"""Largest relative error of logits: values on a rounding boundary may fall to either side."""

BF16_TOLERANCE = 6e-2
"""Tolerance where floats between ops are bfloat16."""

OUTPUT_TOLERANCE = 8e-2
"""Tolerance with flags that change output."""

_PROMPT = [(7 * i + 3) % DIMS["VOCAB"] for i in range(37)]
_NEXT = (5, 9, 13)
_ROWS = 16


def self_check(backend: Backend, enable: Iterable[str] = ()) -> None:
    """Compares a backend, with experimental flags, with the reference.

    Args:
        backend: kernels about to be used; unchanged.
        enable: flags that will be on.

    Raises:
        KernelUnavailableError: the results are wrong; names the backend, the flags and the error.
    """
    enable = tuple(enable)
    flags = sorted(name for name in enable if FLAGS[name].changes == "output")
    reference: Any = ReferenceBackend()
    expected = _logits(reference, ())
    found = _logits(backend, flags)
    tolerance = BF16_TOLERANCE if backend.has_bf16_activations else TOLERANCE
    tolerance = OUTPUT_TOLERANCE if flags else tolerance
    which = f"kernels {backend.name!r}" + (f" with {', '.join(flags)}" if flags else "")
    remedy = "the start-up check failed; enable 'skip_self_check' to run them anyway"
    for name, want in expected.items():
        error = float((found[name] - want).norm() / want.norm())
        if not error <= tolerance:
            raise KernelUnavailableError(
                f"{which}: logits of {name} are off by {error:.3g}, at most {tolerance:g} is "
                f"expected; {remedy}"
            )
    if not backend.is_batch_invariant:
        logger.warning(
            "%s: a row's results depend on the batch around it; equal answers in batches of 1 and "
            "16 and after a resume are not promised on this device",
            which,
        )
        return
    if not torch.equal(found["decode, batch of 1"], found["decode, batch of 16"]):
        raise KernelUnavailableError(
            f"{which}: a row's logits depend on the batch around it; {remedy}"
        )
    if PROMPT_LOOKUP in enable and not _drafts_change_nothing(backend, flags):
        raise KernelUnavailableError(
            f"{which} with {PROMPT_LOOKUP}: logits of a draft token differ from those of a "
            f"separate step; {remedy}"
        )


def _logits(backend: Backend, flags: Sequence[str]) -> dict[str, Tensor]:
    model = TinyModel(backend, flags)
    results = {"prefill": model.prefill(_PROMPT)}
    for size in (1, _ROWS):
        results[f"decode, batch of {size}"] = model.decode(_NEXT[0], len(_PROMPT), size)
    model.close()
    return results


def _drafts_change_nothing(backend: Backend, flags: Sequence[str]) -> bool:
    model = TinyModel(backend, flags)
    model.prefill(_PROMPT)
    together = model.decode_drafts(_NEXT, len(_PROMPT))
    alone = [model.decode(token, len(_PROMPT) + i, 1) for i, token in enumerate(_NEXT)]
    model.close()
    return torch.equal(together, torch.stack(alone))
