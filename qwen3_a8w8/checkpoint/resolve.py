"""Resolves a model name to a directory: a path, "demo", or a hub id.

Owns the look-up; doesn't read the checkpoint. `huggingface_hub` is an optional
extra and is imported only for a hub id.
"""

from __future__ import annotations

import re
from pathlib import Path

from qwen3_a8w8.errors import CheckpointError

DEMO = "demo"
"""Name of the model in this package."""

ACCEPTED = (
    "accepted are a directory with config.json and safetensors files, 'demo' (the model in this "
    "package), or a Hugging Face hub id such as 'Qwen/Qwen3-0.6B'"
)

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# No pickled weights: they would never be loaded.
_DOWNLOADED = ("*.json", "*.safetensors", "*.txt", "*.jinja", "LICENSE*", "NOTICE*")


def resolve_model(model: str) -> Path:
    """Finds the directory of a model.

    Args:
        model: a directory (taken first, `~` is expanded), "demo" (write `./demo` for a directory
            of that name), or a hub id "org/name", which is downloaded or found in the hub's cache.

    Returns:
        The directory. `open_checkpoint` checks whether it has a valid checkpoint.

    Raises:
        CheckpointError: there is no such model; the message lists what is accepted.
    """
    if model == DEMO:
        return _demo_directory()
    if not model.strip():
        raise CheckpointError(f"model is {model!r}; {ACCEPTED}")
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise CheckpointError(
            f"model {model!r} is a file, expected the directory that it is in; {ACCEPTED}"
        )
    if _HUB_ID.fullmatch(model):
        return _download(model)
    raise CheckpointError(f"model {model!r}: there is no such directory; {ACCEPTED}")


def _demo_directory() -> Path:
    # Relative to this module: an editable install can spread the package over two places.
    directory = Path(__file__).resolve().parents[1] / DEMO
    if not (directory / "config.json").is_file():
        raise CheckpointError(
            f"the demo model is missing from this installation: {directory}/config.json doesn't "
            "exist; install the package again"
        )
    return directory


def _download(hub_id: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise CheckpointError(
            f"model {hub_id!r}: there is no such directory here, and loading it from the hub "
            "needs huggingface_hub, which isn't installed; install it with "
            f"`pip install -e '.[hub]'`; {ACCEPTED}"
        ) from error
    try:
        return Path(snapshot_download(hub_id, allow_patterns=list(_DOWNLOADED)))
    # The hub's client raises errors of several HTTP libraries; the user needs to know for each
    # that the model isn't available and why.
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise CheckpointError(
            f"model {hub_id!r}: there is no such directory here, and it couldn't be loaded from "
            f"the hub: {type(error).__name__}: {reason[0]}. Check the id, the network and, for "
            f"a gated model, 'hf auth login'; offline, pass a directory; {ACCEPTED}"
        ) from error
