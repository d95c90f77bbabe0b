"""Runs tests in a process of their own, in which `torch_npu` is the emulation.

Namespace `npu` can be defined once per process and from one wheel only, and libraries that find
a torch_npu behave differently, so that the emulation never enters the process of other tests.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
EMULATION = ROOT / "tools" / "npu_emulation"
TIMEOUT_S = 900


def _load_schemas() -> ModuleType:
    # By path: putting the directory on sys.path would let everybody find a torch_npu.
    spec = importlib.util.spec_from_file_location("npu_schemas", EMULATION / "npu_schemas.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


npu_schemas = _load_schemas()
VERSIONS: tuple[str, ...] = npu_schemas.VERSIONS
NEWEST: str = npu_schemas.NEWEST


@functools.cache
def _schemas(version: str) -> Path | str:
    """The directory, or why there is none; asked once, as no network takes long to notice."""
    try:
        directory: Path = npu_schemas.fetch(version)
    except npu_schemas.SchemasUnavailableError as error:
        return str(error)
    return directory


def environment(options: str = "", version: str = NEWEST, **more: str) -> dict[str, str]:
    """The environment of an emulated process; skips the test if the wheel can't be had.

    Args:
        options: further options of NPU_EMULATION, e.g. "graph=0".
        version: whose schemas define the ops.
        more: further variables.
    """
    found = _schemas(version)
    if isinstance(found, str):
        pytest.skip(found)
    path = os.pathsep.join(filter(None, (str(EMULATION), os.environ.get("PYTHONPATH", ""))))
    return os.environ | {
        "PYTHONPATH": path,
        "NPU_EMULATION": ",".join(filter(None, (f"version={version}", options))),
        npu_schemas.CACHE_VARIABLE: str(found.parent),
        **more,
    }


def run_python(
    *arguments: str, options: str = "", version: str = NEWEST, **more: str
) -> subprocess.CompletedProcess[str]:
    """Runs this Python with the emulation; the caller judges the exit status."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment(options, version, **more),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@dataclass(frozen=True)
class EmulatedRun:
    """Tests that ran together in one emulated process: it takes longer to start than most of them.

    Attributes:
        passed: how many, by file.
        failed: their names; errors too.
        output: what pytest said.
    """

    passed: Counter[str]
    failed: tuple[str, ...]
    output: str

    def check(self, *paths: str) -> int:
        """Fails if a test below one of these paths has failed.

        Returns:
            How many passed there.
        """
        failed = [name for name in self.failed if name.startswith(paths)]
        assert not failed, f"{failed}\n{self.output[-20000:]}"
        return sum(count for path, count in self.passed.items() if path.startswith(paths))


@functools.cache
def run_tests(
    *paths: str, options: str = "", version: str = NEWEST, expression: str = ""
) -> EmulatedRun:
    """Runs test files in an emulated process, once for the same arguments.

    Args:
        paths: below the root; files of an `emulated` directory are collected there only.
        options: see `environment`.
        version: see `environment`.
        expression: for pytest's -k.
    """
    chosen = ["-k", expression] if expression else []
    done = run_python(
        *("-m", "pytest", "-q", "-rpfE", "-p", "no:cacheprovider", *chosen, *paths),
        options=options,
        version=version,
    )
    assert done.returncode in (0, 1), f"{done.stdout[-20000:]}\n{done.stderr[-4000:]}"
    ended = re.findall(r"^(PASSED|FAILED|ERROR) ([^\s:]+)(\S*)", done.stdout, re.MULTILINE)
    print(done.stdout.strip().splitlines()[-1])
    failed = tuple(file + name for how, file, name in ended if how != "PASSED")
    assert bool(failed) == bool(done.returncode), done.stdout[-20000:]
    return EmulatedRun(
        Counter(file for how, file, _ in ended if how == "PASSED"), failed, done.stdout
    )
