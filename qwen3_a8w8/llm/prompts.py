"""What may be given as prompts: a text, a list of token ids, or a list of those."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qwen3_a8w8.errors import InvalidRequestError

Prompt = str | Sequence[int]
Message = Mapping[str, Any]


def as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A list of prompts, also of a single one.

    Raises:
        InvalidRequestError: token ids stand among other prompts.
    """
    if isinstance(prompts, str):
        return [prompts]
    entries = list(prompts)
    if entries and all(isinstance(entry, int) for entry in entries):
        return [[int(str(entry)) for entry in entries]]
    return [entry if isinstance(entry, str) else list(_ids(entry)) for entry in entries]


def _ids(entry: int | str | Sequence[int]) -> Sequence[int]:
    if isinstance(entry, int | str):
        raise InvalidRequestError(
            f"prompts mixes token ids and other prompts, near {entry!r:.60}; pass a text, a list "
            "of ids, or a list of those",
            param="prompts",
        )
    return entry
