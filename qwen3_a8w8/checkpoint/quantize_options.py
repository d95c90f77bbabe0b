"""Validated options for quantising a checkpoint."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from qwen3_a8w8.errors import ConfigError
from qwen3_a8w8.quantization.gptq import DAMPING
from qwen3_a8w8.quantization.int8 import SCALE_SEARCHES
from qwen3_a8w8.quantization.smoothing import ALPHA

METHODS = ("rtn", "smoothquant", "smoothquant+gptq")


@dataclass(frozen=True, slots=True)
class QuantizeOptions:
    """How to quantise.

    Attributes:
        method: one of `METHODS`; all but "rtn" need calibration data.
        scale_search: "absmax" or "mse"; see `quantization.int8.search_weight_scale`.
        keep_float: regular expressions, searched in module paths such as
            `model.layers.3.mlp.down_proj`; linears that match stay in floating point.
        calibration: sequences of token ids; with "rtn" only used for the report.
        alpha: see `quantization.smoothing.ALPHA`; 0 to 1.
        damping: see `quantization.gptq.DAMPING`; above 0.
    """

    method: str = "rtn"
    scale_search: str = "absmax"
    keep_float: tuple[str, ...] = ()
    calibration: tuple[tuple[int, ...], ...] = ()
    alpha: float = ALPHA
    damping: float = DAMPING

    def __post_init__(self) -> None:
        """Checks the values.

        Raises:
            ConfigError: a value is out of range, or values conflict.
        """
        if self.method not in METHODS:
            raise ConfigError(f"method is {self.method!r}, expected one of {', '.join(METHODS)}")
        if self.scale_search not in SCALE_SEARCHES:
            raise ConfigError(
                f"scale_search is {self.scale_search!r}, expected one of "
                f"{', '.join(SCALE_SEARCHES)}"
            )
        for pattern in self.keep_float:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ConfigError(
                    f"keep_float: {pattern!r} isn't a regular expression: {error}"
                ) from error
        if self.method != "rtn" and not self.calibration:
            raise ConfigError(
                f"method {self.method!r} needs calibration data, found none; pass a JSONL file of "
                "texts, or use method 'rtn'"
            )
        if any(len(ids) == 0 for ids in self.calibration):
            raise ConfigError("the calibration data has an empty sequence; remove it")
        if not 0 <= self.alpha <= 1:
            raise ConfigError(f"alpha is {self.alpha}, expected a number from 0 to 1")
        if not self.damping > 0:
            raise ConfigError(f"damping is {self.damping}, expected a number above 0")

    @property
    def smooths(self) -> bool:
        """Whether norms are smoothed."""
        return self.method != "rtn"

    @property
    def compensates(self) -> bool:
        """Whether rounding is GPTQ's."""
        return self.method == "smoothquant+gptq"

    def is_kept(self, module: str) -> bool:
        """Whether the linear with this module path stays in floating point."""
        return any(re.search(pattern, module) for pattern in self.keep_float)

    def digest(self) -> str:
        """Changes with everything that changes the result."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def check_token_ids(calibration: Sequence[Sequence[int]], vocab_size: int) -> None:
    """Refuses ids that the model doesn't have.

    Raises:
        ConfigError: names the sequence and the id.
    """
    for number, ids in enumerate(calibration):
        for token_id in ids:
            if not 0 <= token_id < vocab_size:
                raise ConfigError(
                    f"calibration sequence {number} has the token id {token_id}, expected 0 to "
                    f"{vocab_size - 1}; was it tokenised for another model?"
                )
