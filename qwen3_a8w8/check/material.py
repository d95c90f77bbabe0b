"""The check's prompts and texts as token ids, and files of outputs to compare with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qwen3_a8w8.check.prompts import PROMPTS, TEXTS, VERSION
from qwen3_a8w8.errors import ConfigError
from qwen3_a8w8.text.chat_template import ChatTemplate
from qwen3_a8w8.text.tokenizer import Tokenizer

NUM_PROMPTS = len(PROMPTS)


@dataclass(frozen=True, slots=True)
class Material:
    """Prompts and texts of a check.

    Attributes:
        prompts: 16 prompts, one full batch.
        texts: texts to predict, of at least two tokens.
    """

    prompts: tuple[tuple[int, ...], ...]
    texts: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        """Checks numbers.

        Raises:
            ConfigError: there aren't 16 prompts, or something is too short.
        """
        if len(self.prompts) != NUM_PROMPTS or not all(self.prompts):
            raise ConfigError(
                f"a check has {len(self.prompts)} prompts, expected {NUM_PROMPTS}, none empty"
            )
        if not self.texts or any(len(text) < 2 for text in self.texts):
            raise ConfigError("a check needs texts of at least two tokens")

    @classmethod
    def of_model(cls, directory: Path) -> Material:
        """Encodes the fixed prompts and texts for a model, as chat turns if it has a template.

        Raises:
            CheckpointError: it has no tokenizer.
        """
        tokenizer = Tokenizer.from_directory(directory)
        template = ChatTemplate.from_directory(directory, special_tokens=tokenizer.special_tokens)

        def encode(prompt: str) -> tuple[int, ...]:
            if template is None:
                return tuple(tokenizer.encode(prompt))
            messages = [{"role": "user", "content": prompt}]
            kwargs = {"enable_thinking": False}
            return tuple(tokenizer.encode(template.render(messages, template_kwargs=kwargs)))

        return cls(tuple(map(encode, PROMPTS)), tuple(tuple(tokenizer.encode(t)) for t in TEXTS))


def write_golden(path: Path, outputs: Sequence[Sequence[int]]) -> None:
    """Saves outputs for comparison in later runs."""
    content = {"prompt_set": VERSION, "outputs": [list(ids) for ids in outputs]}
    path.write_text(json.dumps(content) + "\n", encoding="utf-8")


def read_golden(path: Path) -> list[list[int]]:
    """Reads outputs saved by `write_golden`.

    Raises:
        ConfigError: the file can't be read, or has another prompt set.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        version, outputs = content["prompt_set"], content["outputs"]
        golden = [[int(token) for token in ids] for ids in outputs]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"golden file {path}: can't be read: {error}") from error
    if version != VERSION or len(golden) != NUM_PROMPTS:
        raise ConfigError(
            f"golden file {path}: has prompt set {version} with {len(golden)} outputs, expected "
            f"set {VERSION} with {NUM_PROMPTS}; write it again"
        )
    return golden


def differences(
    outputs: Sequence[Sequence[int]], golden: Sequence[Sequence[int]]
) -> dict[int, int]:
    """Position of the first difference of each output that differs, up to the shorter length."""
    found: dict[int, int] = {}
    for number, (ids, wanted) in enumerate(zip(outputs, golden, strict=True)):
        for position, (token, expected) in enumerate(zip(ids, wanted, strict=False)):
            if token != expected:
                found[number] = position
                break
    return found
