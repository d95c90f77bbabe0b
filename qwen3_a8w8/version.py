"""The package's version and commit, without importing the package.

The only definition of the version; the build reads it from this file.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

__version__ = "0.1.0"


def git_commit(directory: Path) -> str | None:
    """The commit of the checkout that a directory is in, "-dirty" added if files differ from it.

    None outside a checkout, or without git.
    """
    commit = _git(directory, "rev-parse", "HEAD")
    if commit is None:
        return None
    return f"{commit}-dirty" if _git(directory, "status", "--porcelain", "-uno") else commit


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
