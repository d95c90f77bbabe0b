"""Calibration data: a JSONL file of texts, conversations or token ids.

A line is an object with one of `text`, `messages` (as in OpenAI's API; rendered
with the checkpoint's chat template) or `token_ids`. Doesn't know what the ids
are used for.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from qwen3_a8w8.errors import ConfigError
from qwen3_a8w8.text.chat_template import ChatTemplate
from qwen3_a8w8.text.tokenizer import Tokenizer


def read_calibration_file(
    path: Path, model_directory: Path, *, max_sequences: int = 128, max_tokens: int = 512
) -> tuple[tuple[int, ...], ...]:
    """Reads the first sequences of a file.

    Args:
        path: the JSONL file; empty lines are skipped.
        model_directory: of the checkpoint, for its tokenizer and chat template.
        max_sequences: further lines are ignored.
        max_tokens: longer sequences are truncated.

    Returns:
        Token ids of each sequence, none empty.

    Raises:
        ConfigError: the file can't be read, or a line isn't as described; names the line.
        CheckpointError: the checkpoint has no tokenizer, and the file has texts to encode.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"calibration file {path}: can't be read: {error}") from error
    encode = _Encoder(model_directory)
    sequences: list[tuple[int, ...]] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() or len(sequences) == max_sequences:
            continue
        where = f"calibration file {path}, line {number}"
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{where}: expected JSON, found something else: {error}") from error
        ids = encode(entry, where)[:max_tokens]
        if not ids:
            raise ConfigError(f"{where}: has no tokens; remove the line")
        sequences.append(tuple(ids))
    if not sequences:
        raise ConfigError(f"calibration file {path}: expected at least one line, found none")
    return tuple(sequences)


class _Encoder:
    """Converts one entry to ids; the tokenizer is loaded when a text first needs it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._tokenizer: Tokenizer | None = None
        self._template: ChatTemplate | None = None

    def __call__(self, entry: Any, where: str) -> list[int]:
        fields = entry if isinstance(entry, dict) else {}
        ids, text, messages = (fields.get(key) for key in ("token_ids", "text", "messages"))
        if isinstance(ids, list) and all(type(token) is int for token in ids):
            return list(ids)
        if not isinstance(text, str) and not isinstance(messages, list):
            raise ConfigError(
                f"{where}: expected an object with 'text', 'messages' or 'token_ids', found "
                f"{entry!r:.80}"
            )
        if self._tokenizer is None:
            self._tokenizer = Tokenizer.from_directory(self._directory)
            self._template = ChatTemplate.from_directory(
                self._directory, special_tokens=self._tokenizer.special_tokens
            )
        if isinstance(text, str):
            return list(self._tokenizer.encode(text))
        assert isinstance(messages, list), "checked above"
        if self._template is None:
            raise ConfigError(
                f"{where}: has messages, but the checkpoint has no chat template; use 'text'"
            )
        rendered = self._template.render(messages, add_generation_prompt=False)
        return list(self._tokenizer.encode(rendered))
