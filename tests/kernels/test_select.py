"""Devices that can't run are refused in one line: fact and remedy."""

import subprocess
import sys

import pytest

from qwen3_a8w8.errors import KernelUnavailableError
from qwen3_a8w8.kernels.npu import look
from qwen3_a8w8.kernels.select import select_backend


def test_npu_without_torch_npu_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(look.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(KernelUnavailableError) as caught:
        select_backend("npu", None)
    assert str(caught.value) == (
        "device 'npu' needs torch_npu, which isn't installed; install the version for your "
        "torch and CANN (docs/ascend.md), or use device='cpu'"
    )


def test_a_torch_npu_that_cant_be_loaded_is_refused_in_one_line(tmp_path):
    # As the real wheel without CANN; in its own process, which imports it.
    (tmp_path / "torch_npu.py").write_text(
        "raise ImportError('libhccl.so: cannot open shared object file\\nmore')\n"
    )
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from qwen3_a8w8.kernels.select import select_backend\n"
        "try: select_backend('npu', None)\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.startswith(
        "KernelUnavailableError device 'npu': torch_npu can't be imported (libhccl.so: cannot "
        "open shared object file); source CANN's set_env.sh"
    )
    assert done.stdout.count("\n") == 1


def test_cuda_is_refused():
    with pytest.raises(KernelUnavailableError, match="'cuda' has no kernels in this version"):
        select_backend("cuda", None)
