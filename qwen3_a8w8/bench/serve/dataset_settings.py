"""Which requests a run sends: the options about prompts and lengths."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from qwen3_a8w8.errors import ConfigError


def option(text: str, *names: str, **limits: Any) -> Any:
    """An option of the command line: its help, its names if they aren't the field's, its range."""
    return typer.Option(*names, help=text, **limits)


@dataclass(frozen=True, slots=True)
class DatasetSettings:
    """What is sent."""

    dataset_name: Annotated[
        Literal["random", "sharegpt", "custom"],
        option("Prompts: random tokens, or from a file in ShareGPT's format or JSON lines."),
    ] = "random"
    dataset_path: Annotated[
        Path | None,
        option('ShareGPT\'s JSON, or JSON lines {"prompt": ..., "output_tokens": ...}.'),
    ] = None
    num_prompts: Annotated[int, option("Requests to send.", min=1)] = 1000
    input_len: Annotated[
        int | None, option("Tokens of a random prompt; same as --random-input-len.", min=1)
    ] = None
    output_len: Annotated[
        int | None, option("Tokens to generate, whatever the dataset says.", min=1)
    ] = None
    random_input_len: Annotated[int, option("Tokens of a random prompt.", min=1)] = 1024
    random_output_len: Annotated[int, option("Tokens to generate for a random prompt.", min=1)] = (
        128
    )
    random_range_ratio: Annotated[
        str,
        option(
            "Lengths are drawn from [len * (1 - ratio), len * (1 + ratio)], ratio in [0, 1); or "
            'as JSON, {"input": 0.2, "output": 0.5}.'
        ),
    ] = "0.0"
    random_prefix_len: Annotated[
        int, option("Tokens that all random prompts begin with, on top of their length.", min=0)
    ] = 0
    sharegpt_output_len: Annotated[
        int | None, option("Tokens to generate; default: the length of the file's answer.", min=1)
    ] = None
    custom_output_len: Annotated[
        int | None, option("Tokens to generate; default: the line's output_tokens.", min=1)
    ] = None
    disable_shuffle: Annotated[
        bool, option("Take the file's prompts in its order.", "--disable-shuffle")
    ] = False
    no_oversample: Annotated[
        bool,
        option("Send fewer requests, not the same again, if the file is short.", "--no-oversample"),
    ] = False
    skip_chat_template: Annotated[
        bool,
        option(
            "Send the prompts of a custom dataset to the text API as they are.",
            "--skip-chat-template",
        ),
    ] = False
    seed: Annotated[int, option("Of prompts, lengths and arrivals.", min=0)] = 0

    def __post_init__(self) -> None:
        """Checks what goes together.

        Raises:
            ConfigError: it doesn't.
        """
        is_random = self.dataset_name == "random"
        if is_random and self.dataset_path is not None:
            raise ConfigError(
                f"--dataset-path {self.dataset_path} with --dataset-name random; choose sharegpt "
                "or custom for a file"
            )
        if not is_random and (self.dataset_path is None or not self.dataset_path.is_file()):
            raise ConfigError(
                f"--dataset-path is {self.dataset_path}, expected a file for --dataset-name "
                f"{self.dataset_name}"
            )
        _ = self.range_ratios

    @property
    def input_tokens(self) -> int:
        """Mean tokens of a random prompt, without the prefix."""
        return self.random_input_len if self.input_len is None else self.input_len

    @property
    def output_tokens(self) -> int | None:
        """Tokens to generate; None: as the file says."""
        by_name = {
            "random": self.random_output_len,
            "sharegpt": self.sharegpt_output_len,
            "custom": self.custom_output_len,
        }
        return by_name[self.dataset_name] if self.output_len is None else self.output_len

    @property
    def range_ratios(self) -> tuple[float, float]:
        """Of input and output.

        Raises:
            ConfigError: it is no number in [0, 1), nor an object of two.
        """
        try:
            value = json.loads(self.random_range_ratio)
            pair = (value["input"], value["output"]) if isinstance(value, dict) else (value, value)
            ratios = (float(pair[0]), float(pair[1]))
        except (ValueError, TypeError, KeyError):
            ratios = (math.nan, math.nan)
        if not all(0 <= ratio < 1 for ratio in ratios):
            raise ConfigError(
                f"--random-range-ratio is {self.random_range_ratio!r}, expected a number in "
                '[0, 1), or {"input": x, "output": y}'
            )
        return ratios
