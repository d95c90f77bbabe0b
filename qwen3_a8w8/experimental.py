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


PROMPT_LOOKUP = "prompt_lookup"

FLAGS: dict[str, ExperimentalFlag] = {
    flag.name: flag
    for flag in (
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
