"""Errors of checkpoints that can't be used."""

import pytest

from qwen3_a8w8.checkpoint.checkpoint import open_checkpoint
from qwen3_a8w8.errors import CheckpointError


def refused(path, *parts):
    """Opens `path`, expects a CheckpointError, and that its message has every part."""
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    for part in parts:
        assert str(part) in str(caught.value)
    assert "\n" not in str(caught.value)
