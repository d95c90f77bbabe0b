"""Experimental flags: off by default, each with what it changes and its measured effect.

`EngineConfig.enable` takes their names. What a flag changes decides how it is validated:
one that changes speed must give the same bits as the default, one that changes output must
stay within the limits of `qwen3-a8w8 check`, and one that disables a safeguard isn't
validated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Changes = Literal["speed", "output", "safeguards"]


@dataclass(frozen=True, slots=True)
class ExperimentalFlag:
    """One flag.

    Attributes:
        name: as written in `enable`.
        summary: what it does.
        changes: what differs from the default: "speed" (never the output), "output", or
            "safeguards" (an escape hatch).
        is_validated: whether tests compare its output with the default's.
        effect: the last measurement of its effect, and on which model.
    """

    name: str
    summary: str
    changes: Changes
    is_validated: bool
    effect: str

    @property
    def status(self) -> str:
        """How it is validated, in words."""
        if self.changes == "safeguards":
            return "an escape hatch, its output isn't validated"
        return "compared with the default by tests" if self.is_validated else "not validated"


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
            summary="a sequence that decodes alone drafts up to 7 tokens from its own text and "
            "verifies them in one step; the output is the same, bit for bit. It has no lookahead.",
            changes="speed",
            is_validated=True,
            effect="on the demo model all 16 outputs of the check are bit-identical to the default",
        ),
        ExperimentalFlag(
            name=SKIP_SELF_CHECK,
            summary="kernels and flags run even if the small model of the self-check at start-up "
            "gives wrong results on them.",
            changes="safeguards",
            is_validated=False,
            effect="nothing to measure",
        ),
    )
}
"""All flags by name."""


LEFT_OUT: dict[str, str] = {
    "int8_attention_probs": "probabilities times V's scales rounded to int8, with a scale per row "
    "and 256 positions, so that both products of attention run in int8. Tried in the reference on "
    "the demo model's 545 tokens of text: a KL of 0.0020 from attention in float (0.0014 with 0 to "
    "255 for probabilities), more than all of A8W8 costs (0.0017), and 97.6% (98.5%) top-1 "
    "agreement. The possible gain is the product with V: for the 14B shape 6% of the "
    "multiply-adds of a prompt at position 4096, and nothing in decoding, where V is read in int8 "
    "either way.",
}
"""What was tried and isn't available, with the reason."""


def unknown_flags(names: Iterable[str]) -> list[str]:
    """The names that aren't flags, sorted."""
    return sorted(set(names) - FLAGS.keys())


def variants() -> list[tuple[str, ...]]:
    """Flag sets that a comparison runs: the default, then each flag except escape hatches."""
    return [(), *((name,) for name in sorted(FLAGS) if FLAGS[name].changes != "safeguards")]
