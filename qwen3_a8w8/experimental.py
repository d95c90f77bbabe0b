"""Experimental switches: off by default, each with what it changes and what is known of it.

`EngineConfig.enable` takes their names. What a flag changes decides what it is held
to: one that changes speed must give the default's bits, one that changes output must
stay within the limits of `qwen3-a8w8 check`, and one that takes a safeguard away is
held to nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Changes = Literal["speed", "output", "safeguards"]


@dataclass(frozen=True, slots=True)
class ExperimentalFlag:
    """One switch.

    Attributes:
        name: what `enable` calls it.
        summary: what it does.
        changes: what differs from the default: "speed" (never the output), "output", or
            "safeguards" (an escape hatch).
        is_validated: whether tests hold its output against the default's.
        effect: what was last measured of it, and where.
    """

    name: str
    summary: str
    changes: Changes
    is_validated: bool
    effect: str

    @property
    def status(self) -> str:
        """What vouches for it, in words."""
        if self.changes == "safeguards":
            return "an escape hatch, nothing vouches for the output"
        return "held against the default by tests" if self.is_validated else "not validated"


INT8_LM_HEAD = "int8_lm_head"
BF16_KV_CACHE = "bf16_kv_cache"
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
            effect="on the demo model a KL of 0.00177 from the float model, 0.00166 by default",
        ),
        ExperimentalFlag(
            name=BF16_KV_CACHE,
            summary="keys and values are kept in bf16, not in int8 with a scale per token and "
            "head: nearly twice the memory per token. The same as `kv_cache_dtype: bf16`.",
            changes="output",
            is_validated=True,
            effect="on the demo model a KL of 0.00153 from the float model, 0.00166 by default",
        ),
        ExperimentalFlag(
            name=PROMPT_LOOKUP,
            summary="a sequence that decodes alone guesses up to 7 tokens from its own text and "
            "checks them in one step; the output is the same, bit for bit. No lookahead for it.",
            changes="speed",
            is_validated=True,
            effect="on the demo model all 16 answers of the check have the default's bits",
        ),
        ExperimentalFlag(
            name=SKIP_SELF_CHECK,
            summary="kernels and flags run even if the small model that is tried at start-up "
            "gives wrong results on them.",
            changes="safeguards",
            is_validated=False,
            effect="nothing to measure",
        ),
    )
}
"""All switches by name."""


LEFT_OUT: dict[str, str] = {
    "int8_attention_probs": "probabilities times V's scales rounded to int8, with a scale per row "
    "and 256 positions, so that both products of attention run in int8. Tried in the reference on "
    "the demo model's 545 tokens of text: a KL of 0.0020 from attention in float (0.0014 with 0 to "
    "255 for probabilities), more than all of A8W8 costs (0.0017), and 97.6% (98.5%) of the first "
    "choices. What there is to gain is the product with V: for the 14B shape 6% of the "
    "multiply-adds of a prompt at position 4096, and nothing in decoding, where V is read in int8 "
    "either way.",
}
"""What was tried and isn't offered, with the reason."""


def unknown_flags(names: Iterable[str]) -> list[str]:
    """Those of the names that aren't switches, sorted."""
    return sorted(set(names) - FLAGS.keys())


def variants() -> list[tuple[str, ...]]:
    """What a comparison runs: the default, then each flag alone that isn't an escape hatch."""
    return [(), *((name,) for name in sorted(FLAGS) if FLAGS[name].changes != "safeguards")]


def describe_flags(active: Iterable[str]) -> list[dict[str, str | bool]]:
    """Every flag with its state, for whoever reports on a running engine.

    Args:
        active: names of those that are on, e.g. `EngineConfig.active_flags`.

    Returns:
        For each flag: name, is_enabled, changes, status, effect and summary, JSON-ready.
    """
    on = set(active)
    return [
        {
            "name": flag.name,
            "is_enabled": flag.name in on,
            "changes": flag.changes,
            "status": flag.status,
            "effect": flag.effect,
            "summary": flag.summary,
        }
        for flag in FLAGS.values()
    ]
