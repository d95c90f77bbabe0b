"""Reads the small JSON files of a checkpoint directory, with errors that name the file.

Doesn't interpret them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from qwen3_a8w8.errors import CheckpointError


def read_text_file(path: Path) -> str:
    """The file's text.

    Raises:
        CheckpointError: it is missing, unreadable or not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise CheckpointError(
            f"{path}: no such file; expected it in the checkpoint directory, copy it from the "
            "original model"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: can't be read as UTF-8 text: {error}") from error


def read_json_object(path: Path) -> dict[str, Any]:
    """The file's JSON object.

    Raises:
        CheckpointError: it is missing, unreadable, not JSON or not an object.
    """
    text = read_text_file(path)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path}: expected JSON, found {len(text)} characters that don't parse: {error}; "
            "the file is damaged or truncated, copy it again"
        ) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value
