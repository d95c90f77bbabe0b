"""The rotary embedding of a checkpoint, and YaRN, which stretches it beyond the native context.

The validated values of `rope_parameters` or `rope_scaling` in a config.json, and the frequencies
computed from them; `model/rope.py` and `quantization/qwen3_layer.py` build the tables.
Source: Peng et al. 2023, "YaRN", sections 3.2 to 3.4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qwen3_a8w8.errors import CheckpointError

_LAYER_TYPE = "full_attention"
_PLAIN_KEYS = {"rope_type", "type", "rope_theta"}
_YARN_KEYS = {
    *_PLAIN_KEYS,
    "factor",
    "original_max_position_embeddings",
    "attention_factor",
    "beta_fast",
    "beta_slow",
}


def rope_parameters(raw: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Finds the rotary parameters in any of the shapes that config.json files have.

    Read are `rope_parameters` of transformers 5, flat or by layer type, and `rope_theta` beside
    `rope_scaling` of older versions.

    Args:
        raw: the parsed config.json.
        source: where it came from, for messages.

    Returns:
        The parameters of all layers, with at least `rope_theta`, not validated yet.

    Raises:
        CheckpointError: there is no base, or there are several; another layer type than full
            attention; a parameter that isn't supported.
    """
    name = "rope_parameters" if raw.get("rope_parameters") else "rope_scaling"
    rope = raw.get(name) or {}
    if not isinstance(rope, Mapping):
        raise CheckpointError(f"{source}: {name} is {rope!r}, expected an object")
    others = sorted({str(kind) for kind in raw.get("layer_types") or ()} - {_LAYER_TYPE})
    if others:
        raise CheckpointError(
            f"{source}: layer_types has {others}, expected {_LAYER_TYPE!r} only; other kinds of "
            "attention aren't supported"
        )
    if any(isinstance(value, Mapping) for value in rope.values()):
        name = f"{name}.{_LAYER_TYPE}"
        rope = rope.get(_LAYER_TYPE)
        if not isinstance(rope, Mapping):
            raise CheckpointError(f"{source}: {name} is {rope!r}, expected an object")
    bases = [
        value for value in (rope.get("rope_theta"), raw.get("rope_theta")) if value is not None
    ]
    if not bases:
        raise CheckpointError(
            f"{source}: rope_theta is missing, from the top level and from {name}; published Qwen3 "
            "models have 1000000, and transformers would take 10000: add the base that the model "
            "was trained with"
        )
    if bases[0] != bases[-1]:
        raise CheckpointError(
            f"{source}: rope_theta is {bases[0]!r} in {name} and {bases[-1]!r} at the top level, "
            "expected one base; remove the wrong one"
        )
    found = {**rope, "rope_theta": bases[0]}
    for owner in (found, raw):
        factor = owner.get("partial_rotary_factor", 1.0)
        if factor != 1.0:
            raise CheckpointError(
                f"{source}: partial_rotary_factor is {factor!r}; Qwen3 rotates whole heads, "
                "expected 1.0 or no such field"
            )
    found.pop("partial_rotary_factor", None)
    return found


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
        """Reads the scaling among the parameters of a Hugging Face config.

        Args:
            rope: from `rope_parameters`.
            max_position_embeddings: of the config; the native context unless the object sets it.
            source: where it came from, for messages.

        Returns:
            The scaling, or None for the plain rotary embedding.

        Raises:
            CheckpointError: another type of scaling, an unknown key, or a value out of range.
        """
        rope_type = rope.get("rope_type", rope.get("type", "default"))
        keys = _PLAIN_KEYS if rope_type == "default" else _YARN_KEYS
        if rope_type not in ("default", "yarn"):
            raise CheckpointError(
                f"{source}: rope type {rope_type!r} isn't supported, expected 'default' or 'yarn'; "
                "remove rope_scaling to run the model at its native context"
            )
        if unknown := sorted(rope.keys() - keys):
            raise CheckpointError(
                f"{source}: the rotary parameters have the keys {unknown}, which aren't supported "
                f"for type {rope_type!r}; supported are {sorted(keys)}"
            )
        if rope_type == "default":
            return None

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
