"""Experimental switches: off by default, each with what it changes and what is known of it.

`EngineConfig.enable` takes their names. A flag is validated once its output has been
held against the default's; until then whoever switches it on is told so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExperimentalFlag:
    """One switch.

    Attributes:
        name: what `enable` calls it.
        summary: what it does.
        changes: what may differ from the default: "speed" or "output".
        is_validated: whether tests hold its output against the default's.
    """

    name: str
    summary: str
    changes: str
    is_validated: bool


INT8_LM_HEAD = "int8_lm_head"
SKIP_SELF_CHECK = "skip_self_check"
PROMPT_LOOKUP = "prompt_lookup"

FLAGS: dict[str, ExperimentalFlag] = {
    flag.name: flag
    for flag in (
        ExperimentalFlag(
            name=INT8_LM_HEAD,
            summary="the output projection runs in int8 like the other linears: half the bytes to "
            "read per step. Logits change in the third digit.",
            changes="output",
            is_validated=True,
        ),
        ExperimentalFlag(
            name=SKIP_SELF_CHECK,
            summary="kernels and flags run even if the small model that is tried at start-up "
            "gives wrong results on them.",
            changes="speed",
            is_validated=True,
        ),
        ExperimentalFlag(
            name=PROMPT_LOOKUP,
            summary="a sequence that decodes alone guesses up to 7 tokens from its own text and "
            "checks them in one step; the output is the same, bit for bit. No lookahead for it.",
            changes="speed",
            is_validated=True,
        ),
    )
}
"""All switches by name."""


def unknown_flags(names: Iterable[str]) -> list[str]:
    """Those of the names that aren't switches, sorted."""
    return sorted(set(names) - FLAGS.keys())


def variants() -> list[tuple[str, ...]]:
    """What a comparison runs: the default, then each flag that does something alone."""
    return [(), *((name,) for name in sorted(FLAGS) if name != SKIP_SELF_CHECK)]
