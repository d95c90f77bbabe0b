"""End tokens and sampling defaults from a checkpoint's `generation_config.json`.

A request's own field always takes precedence; without a file the defaults are
those of the OpenAI API.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from qwen3_a8w8.errors import CheckpointError
from qwen3_a8w8.text.checkpoint_file import read_json_object

GENERATION_CONFIG_FILE = "generation_config.json"


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Sampling defaults of one checkpoint; meanings and ranges as in `SamplingParams`.

    Attributes:
        eos_token_ids: ids that end a generation; empty if the file has none.
        temperature: default 1.0; 0 if the file says `do_sample: false`.
        top_p: default 1.0.
        top_k: default 0, which keeps all.
        min_p: default 0.0.
        repetition_penalty: default 1.0.
    """

    eos_token_ids: tuple[int, ...] = ()
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def sampling_fields(self) -> dict[str, Any]:
        """The fields of `SamplingParams` that these defaults set."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "eos_token_ids"}

    @classmethod
    def from_directory(cls, directory: str | Path) -> GenerationDefaults:
        """Reads the file; without one every field has its default.

        Raises:
            CheckpointError: the file is damaged or a value has a wrong type or range.
        """
        path = Path(directory) / GENERATION_CONFIG_FILE
        if not path.exists():
            return cls()
        return cls.from_hf(read_json_object(path), str(path))

    @classmethod
    def from_hf(
        cls, raw: Mapping[str, Any], source: str = GENERATION_CONFIG_FILE
    ) -> GenerationDefaults:
        """Builds the defaults from the fields of a `generation_config.json`.

        Raises:
            CheckpointError: a value has a wrong type or range.
        """

        def number(
            name: str, default: float, expected: str, is_valid: Callable[[float], bool]
        ) -> float:
            value = raw.get(name)
            if value is None:
                return default
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not math.isfinite(value) or not is_valid(value):
                raise CheckpointError(f"{source}: {name} is {value!r}, expected {expected}")
            return float(value)

        eos = raw.get("eos_token_id")
        eos_ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
        if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in eos_ids):
            raise CheckpointError(
                f"{source}: eos_token_id is {eos!r}, expected a token id or a list of them"
            )
        top_k = number(
            "top_k", 0, "an integer of at least -1", lambda v: v >= -1 and v == math.floor(v)
        )
        temperature = number("temperature", 1.0, "a number in [0, 100]", lambda v: 0 <= v <= 100)
        return cls(
            eos_token_ids=tuple(eos_ids),
            temperature=0.0 if raw.get("do_sample") is False else temperature,
            top_p=number("top_p", 1.0, "a number in (0, 1]", lambda v: 0 < v <= 1),
            top_k=int(top_k),
            min_p=number("min_p", 0.0, "a number in [0, 1]", lambda v: 0 <= v <= 1),
            repetition_penalty=number(
                "repetition_penalty", 1.0, "a number in [0.01, 10]", lambda v: 0.01 <= v <= 10
            ),
        )
