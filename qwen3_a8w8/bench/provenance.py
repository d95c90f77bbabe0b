"""Where a figure comes from: code, versions and machine, for the JSON of a benchmark."""

from __future__ import annotations

import platform
import subprocess
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from qwen3_a8w8.kernels.backend import Backend
from qwen3_a8w8.version import __version__

_PACKAGES = ("torch", "numpy", "safetensors", "ray", "tokenizers")
_CPUINFO = Path("/proc/cpuinfo")


def provenance(backend: Backend, *, model: str, fingerprint: str | None) -> dict[str, Any]:
    """Everything that a reader needs to judge or repeat a figure.

    Args:
        backend: what computes.
        model: directory or shape as the user gave it.
        fingerprint: of the checkpoint; None where only a shape was measured.
    """
    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": git_commit(Path(__file__).resolve().parent),
        "version": __version__,
        "model": model,
        "checkpoint_fingerprint": fingerprint,
        "backend": backend.describe(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "cpu": cpu_model(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def git_commit(directory: Path) -> str | None:
    """The commit of the checkout that a directory is in, "-dirty" added if files differ from it.

    None outside a checkout, or without git.
    """
    commit = _git(directory, "rev-parse", "HEAD")
    if commit is None:
        return None
    return f"{commit}-dirty" if _git(directory, "status", "--porcelain", "-uno") else commit


def cpu_model() -> str:
    """The processor's name as the kernel knows it."""
    if _CPUINFO.is_file():
        for line in _CPUINFO.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _git(directory: Path, *command: str) -> str | None:
    try:
        result = subprocess.run(
            ["git", "-C", str(directory), *command],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
