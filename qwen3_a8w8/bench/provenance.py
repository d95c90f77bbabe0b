"""Provenance of a figure: code, versions and machine, for the JSON of a benchmark."""

from __future__ import annotations

import platform
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from qwen3_a8w8.kernels.backend import Backend
from qwen3_a8w8.version import __version__, git_commit

_PACKAGES = ("torch", "numpy", "safetensors", "ray", "tokenizers", "aiohttp")
_CPUINFO = Path("/proc/cpuinfo")


def provenance(backend: Backend, *, model: str, fingerprint: str | None) -> dict[str, Any]:
    """Everything needed to assess or reproduce a figure of this process.

    Args:
        backend: runs the kernels.
        model: directory or shape as passed by the user.
        fingerprint: of the checkpoint; None if only a shape was measured.
    """
    return {
        **environment(model),
        "checkpoint_fingerprint": fingerprint,
        "backend": backend.describe(),
    }


def environment(model: str) -> dict[str, Any]:
    """Code, versions and machine of this process, when it measures another one.

    Args:
        model: as passed by the user.
    """
    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": git_commit(Path(__file__).resolve().parent),
        "version": __version__,
        "model": model,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "cpu": cpu_model(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def cpu_model() -> str:
    """The processor's name as reported by the kernel."""
    if _CPUINFO.is_file():
        for line in _CPUINFO.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
