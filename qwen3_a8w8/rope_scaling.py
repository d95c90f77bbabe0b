"""YaRN: how a checkpoint's rotary positions are stretched beyond its native context.

The validated values of `rope_scaling` in a config.json, and the frequencies computed
from them; `model/rope.py` and `quantization/qwen3_layer.py` build the tables.
Source: Peng et al. 2023, "YaRN", sections 3.2 to 3.4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qwen3_a8w8.errors import CheckpointError

_YARN_KEYS = {
    "rope_type",
    "type",
    "rope_theta",
    "factor",
    "original_max_position_embeddings",
    "attention_factor",
    "beta_fast",
    "beta_slow",
}


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """Parameters of YaRN.

    Attributes:
        factor: ratio of the stretched to the native context, at least 1.
        original_max_position_embeddings: native context in tokens.
        attention_factor: multiplies cosines and sines; by default
            0.1 * ln(factor) + 1.
        beta_fast: dimensions that rotate more often than this over the native context keep their
            frequency.
        beta_slow: dimensions that rotate less often have it divided by `factor`; between the two
            it is blended.
    """

    factor: float
    original_max_position_embeddings: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0

    @property
    def context_length(self) -> int:
        """The stretched context in tokens."""
        return int(self.factor * self.original_max_position_embeddings)

    def ramp(self, head_dim: int, theta: float) -> tuple[float, float]:
        """Bounds of the frequency indices that are blended; the second is larger.

        Args:
            head_dim: width of a head.
            theta: base of the rotary embedding.
        """

        def index_that_turns(num_turns: float) -> float:
            wavelengths = self.original_max_position_embeddings / (num_turns * 2 * math.pi)
            return head_dim * math.log(wavelengths) / (2 * math.log(theta))

        low = max(math.floor(index_that_turns(self.beta_fast)), 0)
        high = min(math.ceil(index_that_turns(self.beta_slow)), head_dim - 1)
        return low, high if high != low else high + 0.001

    @classmethod
    def from_hf(
        cls, rope: Mapping[str, Any], max_position_embeddings: int, source: str
    ) -> YarnScaling | None:
        """Reads `rope_scaling` (or `rope_parameters`) of a Hugging Face config.

        Args:
            rope: the object; empty if the config has none.
            max_position_embeddings: of the config; the native context unless the object sets it.
            source: where it came from, for messages.

        Returns:
            The scaling, or None for the plain rotary embedding.

        Raises:
            CheckpointError: another type of scaling, an unknown key, or a value out of range.
        """
        rope_type = rope.get("rope_type", rope.get("type", "default"))
        if rope_type == "default":
            return None
        if rope_type != "yarn":
            raise CheckpointError(
                f"{source}: rope type {rope_type!r} isn't supported, expected 'default' or 'yarn'; "
                "remove rope_scaling to run the model at its native context"
            )
        if unknown := sorted(rope.keys() - _YARN_KEYS):
            raise CheckpointError(
                f"{source}: rope_scaling has the keys {unknown}, which aren't supported for YaRN; "
                f"supported are {sorted(_YARN_KEYS)}"
            )

        def number(name: str, default: float | None, low: float) -> float:
            value = rope.get(name)
            value = default if value is None else value
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or not math.isfinite(value)
                or value < low
            ):
                raise CheckpointError(
                    f"{source}: rope_scaling field {name!r} is {value!r}, expected a number of at "
                    f"least {low:g}"
                )
            return float(value)

        factor = number("factor", None, 1.0)
        original = number("original_max_position_embeddings", max_position_embeddings, 1.0)
        return cls(
            factor=factor,
            original_max_position_embeddings=int(original),
            attention_factor=number("attention_factor", 0.1 * math.log(factor) + 1.0, 0.01),
            beta_fast=number("beta_fast", 32.0, 0.01),
            beta_slow=number("beta_slow", 1.0, 0.01),
        )


def rotary_frequencies(
    head_dim: int, theta: float, yarn: YarnScaling | None
) -> tuple[list[float], float]:
    """Frequencies and scale of a rotary table.

    Args:
        head_dim: width of a head, even.
        theta: base.
        yarn: stretches the frequencies and scales the whole table.

    Returns:
        Radians per position of each pair of dimensions, `head_dim / 2` of them, and the factor
        for all cosines and sines.  Source: Su et al. 2021, "RoFormer", section 3.4.2.
    """
    plain = [theta ** (-2 * i / head_dim) for i in range(head_dim // 2)]
    if yarn is None:
        return plain, 1.0
    low, high = yarn.ramp(head_dim, theta)
    stretched = [min(max((i - low) / (high - low), 0.0), 1.0) for i in range(head_dim // 2)]
    blended = [
        frequency * (1 - share + share / yarn.factor)
        for frequency, share in zip(plain, stretched, strict=True)
    ]
    return blended, yarn.attention_factor
