"""Gets what a torch_npu wheel says about its ops, without installing it.

A wheel of torch_npu can't be installed next to CPU torch (without CANN `import torch` then
fails), but it carries the schemas of its ops and their shape functions ("metas") as text. They
are unpacked into a cache directory, never into the tree:

    <cache>/<version>/npu_native_functions.yaml
    <cache>/<version>/npu_native_functions_by_codegen.yaml
    <cache>/<version>/_meta_registrations.py

`python tools/npu_emulation/npu_schemas.py` fetches all versions that are claimed. The cache is
`.cache/npu_schemas` of the repository, or the directory named by NPU_SCHEMAS_DIR.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

OLDEST = "2.7.1.post4"
"""The first release with every op and argument in use. What came last is the `cache_mode` of
npu_scatter_pa_kv_cache, which 2.8.0, 2.8.0.post2 and 2.9.0 lack although they are newer."""
NEWEST = "2.14.0"
VERSIONS = (OLDEST, NEWEST)

FILES = (
    "torch_npu/csrc/aten/npu_native_functions.yaml",
    "torch_npu/csrc/aten/npu_native_functions_by_codegen.yaml",
    "torch_npu/op_plugin/meta/_meta_registrations.py",
)
CACHE_VARIABLE = "NPU_SCHEMAS_DIR"
DOWNLOAD_TIMEOUT_S = 600


class SchemasUnavailableError(RuntimeError):
    """The wheel is not in the cache and can't be had now."""


def cache_directory() -> Path:
    """Where unpacked schemas are kept."""
    named = os.environ.get(CACHE_VARIABLE)
    return Path(named) if named else Path(__file__).parents[2] / ".cache" / "npu_schemas"


def cached(version: str) -> Path | None:
    """The directory of a version, or None if it was never fetched."""
    directory = cache_directory() / version
    is_complete = all((directory / Path(name).name).is_file() for name in FILES)
    return directory if is_complete else None


def fetch(version: str) -> Path:
    """The directory of a version; downloads its wheel (20 to 45 MB) the first time.

    Raises:
        SchemasUnavailableError: pip could not get the wheel; the message ends with pip's reason.
    """
    found = cached(version)
    if found is not None:
        return found
    target = cache_directory() / version
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        wheel = _download(version, Path(scratch))
        unpacked = Path(scratch) / "unpacked"
        unpacked.mkdir()
        with zipfile.ZipFile(wheel) as archive:
            for name in FILES:
                (unpacked / Path(name).name).write_bytes(archive.read(name))
        shutil.rmtree(target, ignore_errors=True)  # an incomplete one
        try:
            unpacked.rename(target)
        except OSError:
            if cached(version) is None:  # nobody else was faster
                raise
    return target


def _download(version: str, directory: Path) -> Path:
    # Any platform and Python will do, because only text is read.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--retries", "1"]
    command += ["--no-deps", "--only-binary=:all:", "--platform", "manylinux_2_28_x86_64"]
    command += ["--python-version", "3.11", "--dest", str(directory), f"torch-npu=={version}"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise SchemasUnavailableError(
            f"torch-npu {version}: no wheel within {DOWNLOAD_TIMEOUT_S} s; "
            f"set {CACHE_VARIABLE} to a directory where it was unpacked before"
        ) from error
    wheels = list(directory.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no output"]
        raise SchemasUnavailableError(
            f"torch-npu {version}: pip can't download the wheel ({lines[-1].strip()}); "
            f"set {CACHE_VARIABLE} to a directory where it was unpacked before"
        )
    return wheels[0]


def main() -> int:
    """Fetches every claimed version."""
    for version in VERSIONS:
        try:
            print(f"torch-npu {version}: {fetch(version)}")
        except SchemasUnavailableError as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
