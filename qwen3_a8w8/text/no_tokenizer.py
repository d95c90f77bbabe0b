"""Replacement for the tokenizer of a checkpoint that has none, e.g. with random weights.

Prompts are then lists of ids, and outputs have ids and no text.
"""

from __future__ import annotations

from pathlib import Path

import tokenizers

from qwen3_a8w8.errors import InvalidRequestError
from qwen3_a8w8.text.tokenizer import TOKENIZER_CONFIG_FILE, TOKENIZER_FILE, Tokenizer


class NoTokenizer(Tokenizer):
    """A tokenizer whose ids have no text and that can't encode text."""

    def __init__(self) -> None:
        super().__init__(tokenizers.Tokenizer(tokenizers.models.BPE()), {})

    def encode(self, text: str, *, allow_special: bool = True) -> list[int]:
        """Always raises.

        Raises:
            InvalidRequestError: always.
        """
        del text, allow_special
        raise InvalidRequestError(
            "the checkpoint has no tokenizer; pass prompts as lists of token ids, or put its "
            f"{TOKENIZER_FILE} and {TOKENIZER_CONFIG_FILE} next to the weights",
            param="prompt",
        )


def has_no_tokenizer(directory: Path) -> bool:
    """Whether a checkpoint has no tokenizer file at all; only one of the two means damage."""
    return not any((directory / name).exists() for name in (TOKENIZER_FILE, TOKENIZER_CONFIG_FILE))
