"""Only an engine's process imports torch_npu; whoever looks for an NPU gets an answer in time.

A module named torch_npu that says who imports it, or misbehaves, is in the place of the real one.
"""

import json
import os
import subprocess
import sys
import time

import pytest

from qwen3_a8w8.errors import KernelUnavailableError
from qwen3_a8w8.kernels.npu.look import ask, look
from tests.support.npu_emulation import run_python

CALLER = "import json, sys\n{call}\nprint(json.dumps('torch_npu' in sys.modules))\n"
DOCTOR = "from qwen3_a8w8.cli.main import main\ntry: main()\nexcept SystemExit: pass"
AUTO = (
    "import logging\nlogging.basicConfig(level=logging.INFO)\n"
    "from qwen3_a8w8.kernels.select import select_backend\n"
    "print(select_backend('auto', 1).name)"
)


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """Puts a torch_npu with this code on the path of children, and makes this process find it."""

    def put(code):
        (tmp_path / "torch_npu.py").write_text(code)
        monkeypatch.syspath_prepend(str(tmp_path))
        path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH", ""))))
        monkeypatch.setenv("PYTHONPATH", path)

    return put


def test_a_child_that_hangs_is_ended_with_all_it_has_started(broken, tmp_path):
    pids = tmp_path / "pids"
    broken("")
    (tmp_path / "hangs.py").write_text(
        "import os, pathlib, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)'])\n"
        f"pathlib.Path({str(pids)!r}).write_text(f'{{os.getpid()}} {{child.pid}}')\n"
        "time.sleep(3600)\n"
    )
    with pytest.raises(KernelUnavailableError, match=r"no answer within 5 s .*npu-smi info"):
        ask("hangs", time_limit_s=5)
    for pid in map(int, pids.read_text().split()):
        assert pid != os.getpid()
        assert _has_ended(pid)


def _has_ended(pid):
    """Whether a process is gone, or dead and only not yet collected by its parent."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
                state = stat.read().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import os; os._exit(7)", r"ended with status 7; run `python -m"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ended with status -11"),
        ("raise ImportError('libhccl.so: no such file')", r"can't be imported \(libhccl.so"),
        ("raise SystemExit('a strange end')", "ended with status 1: a strange end"),
    ],
)
def test_a_torch_npu_that_ends_its_process_ends_only_the_child(broken, code, message):
    broken(code)
    with pytest.raises(KernelUnavailableError, match=message) as caught:
        look()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("call", "argument"), [(DOCTOR, "doctor"), (AUTO, "")])
def test_doctor_and_auto_import_it_in_a_child_alone(tmp_path, broken, call, argument):
    importers = tmp_path / "importers"
    broken(
        "import os, pathlib\n"
        f"with pathlib.Path({str(importers)!r}).open('a') as file: print(os.getpid(), file=file)\n"
        "raise ImportError('no CANN')\n"
    )
    arguments = [sys.executable, "-c", CALLER.format(call=call), *filter(None, [argument])]
    with subprocess.Popen(arguments, stdout=-1, stderr=-1, text=True) as process:
        out, err = process.communicate(timeout=300)
    assert json.loads(out.splitlines()[-1]) is False, err
    assert "no CANN" in " ".join((out + err).split())
    pids = importers.read_text().split()
    assert len(pids) == 1
    assert int(pids[0]) not in (process.pid, os.getpid())


@pytest.mark.npu_contract
def test_doctor_shows_the_npu_and_imports_nothing_itself():
    done = run_python("-c", CALLER.format(call=DOCTOR), "doctor", COLUMNS="400")
    assert json.loads(done.stdout.splitlines()[-1]) is False, done.stderr
    (row,) = [line for line in done.stdout.splitlines() if line.strip("│┃| ").startswith("npu")]
    assert "soc Ascend910B3 (Atlas A2)" in row
    assert "(emulated)" in row
    assert "batch_invariance" in row
