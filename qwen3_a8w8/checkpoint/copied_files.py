"""Files copied unchanged when a checkpoint is rewritten: tokenizer, template, licence."""

from __future__ import annotations

import shutil
from pathlib import Path

COPIED_FILES = (
    "generation_config.json",
    "tokenizer*",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "LICENSE*",
    "NOTICE*",
)
"""Names, as glob patterns."""


def copy_other_files(source: Path, target: Path) -> None:
    """Copies them from one directory to another."""
    for pattern in COPIED_FILES:
        for path in sorted(source.glob(pattern)):
            if path.is_file():
                shutil.copyfile(path, target / path.name)
