"""An environment for each client: a venv or an npm directory of its own, made once and kept.

They lie in `.cache/clients` (or where QWEN3_A8W8_CLIENTS says). A venv also sees the packages of
the interpreter that runs the tests, so that what both need, torch above all, isn't there twice;
what a client needs in another version is installed into its own venv and found first.
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DIRECTORY = Path(os.environ.get("QWEN3_A8W8_CLIENTS") or ROOT / ".cache" / "clients")
INSTALL_TIMEOUT_S = 1200.0


class CannotInstallError(Exception):
    """A package can't be had here: no registry, no network, no wheel, or no npm."""


def python_environment(name: str, requirements: list[str], *, may_make: bool) -> list[str]:
    """The command that starts the Python of a client's venv.

    Args:
        name: of the client.
        requirements: as for pip. With `--no-deps` among them nothing else is installed.
        may_make: make the venv if it isn't there; otherwise the test is skipped.
    """
    directory = DIRECTORY / name

    def make() -> None:
        _run([sys.executable, "-m", "venv", "--without-pip", str(directory)])
        python = directory / "bin" / "python"
        (site,) = directory.glob("lib/python*/site-packages")
        shared = [p for p in sys.path if Path(p).name in ("site-packages", "dist-packages")]
        (site / "of_the_tests.pth").write_text("\n".join(shared) + "\n")
        if not requirements:
            return
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
        _run([*pip, "--disable-pip-version-check", *requirements])

    _made(directory, requirements, may_make, make)
    return [str(directory / "bin" / "python"), "-W", "ignore"]


def npm_environment(name: str, requirements: list[str], *, may_make: bool) -> Path:
    """A directory with a `node_modules`; arguments as for `python_environment`."""
    directory = DIRECTORY / name

    def make() -> None:
        directory.mkdir(parents=True)
        (directory / "package.json").write_text('{"private": true, "type": "module"}')
        npm = shutil.which("npm")
        if npm is None or shutil.which("node") is None:
            raise CannotInstallError("node and npm aren't installed")
        install = [npm, "install", "--no-audit", "--no-fund", "--silent"]
        _run([*install, "--prefix", str(directory), *requirements])

    _made(directory, requirements, may_make, make)
    return directory


def version_in(python: list[str], package: str) -> str:
    """The version of a package in a venv."""
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.run([*python, "-c", code], check=True, capture_output=True, text=True).stdout


def _made(directory: Path, requirements: list[str], may_make: bool, make) -> None:
    ready = directory / "ready.json"
    with _locked(directory):
        if ready.exists() and json.loads(ready.read_text()) == requirements:
            return
        if not may_make:
            pytest.skip(f"{directory} isn't there or is of other packages; make clients makes it")
        shutil.rmtree(directory, ignore_errors=True)
        try:
            make()
        except CannotInstallError as error:
            shutil.rmtree(directory, ignore_errors=True)
            pytest.skip(f"{directory.name} can't be installed: {error}")
        ready.write_text(json.dumps(requirements))


@contextmanager
def _locked(directory: Path):
    directory.parent.mkdir(parents=True, exist_ok=True)
    with directory.with_name(f".{directory.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(command: list[str]) -> None:
    done = subprocess.run(
        ["nice", *command], capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise CannotInstallError((done.stderr or done.stdout).strip()[-2000:])
