"""Native memory is freed when a backend is closed or dropped, and at the end of a process."""

import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch

from qwen3_a8w8.errors import KernelUnavailableError
from qwen3_a8w8.kernels.cpu.backend import CpuBackend
from qwen3_a8w8.kernels.cpu.native import load_native
from qwen3_a8w8.kernels.program import ConstLayout, Ref, RefKind
from qwen3_a8w8.kernels.signature import INT8
from tests.kernels.small_model import SmallModel
from tests.support.checkpoints import make_random_qwen3

REPOSITORY = Path(__file__).parents[2]
WEIGHT = Ref(0, RefKind.CONST, "w_q", INT8, (64, 64), ConstLayout.LINEAR_INT8)


def _num_native():
    gc.collect()
    return load_native().num_live_objects()


def _num_threads():
    return len(os.listdir("/proc/self/task"))


def test_lifetime_close_frees_what_is_still_referred_to():
    before, threads_before = _num_native(), _num_threads()
    backend = CpuBackend(num_threads=3)
    model = SmallModel(backend)
    model.decode([(0, 0, 3)], 1)
    packed = backend.pack(WEIGHT, torch.ones(64, 64, dtype=torch.int8))
    assert _num_native() > before + 2  # a runtime, two programs, weights
    assert _num_threads() == threads_before + 2
    model.compiler.close()
    assert _num_native() == before
    assert _num_threads() == threads_before
    with pytest.raises(KernelUnavailableError, match="is closed"):
        model.decode([(0, 1, 3)], 1)
    with pytest.raises(KernelUnavailableError, match="is closed"):
        packed.data_ptr()
    with pytest.raises(KernelUnavailableError, match="is closed"):
        backend.pack(WEIGHT, torch.ones(64, 64, dtype=torch.int8))
    backend.close()


def test_lifetime_a_dropped_backend_is_freed_without_close():
    before = _num_native()
    model = SmallModel(CpuBackend(num_threads=2))
    model.decode([(0, 0, 3)], 1)
    backend = weakref.ref(model.compiler.backend)
    model.itself = model  # only the collector can free it
    del model
    assert _num_native() == before
    assert backend() is None


def test_lifetime_mapped_weights_keep_their_owner_until_they_are_dropped():
    backend = CpuBackend(num_threads=1)
    owner = torch.zeros(64 * 64 + 64, dtype=torch.uint8)
    kept = weakref.ref(owner)
    address = -(-owner.data_ptr() // 64) * 64
    packed = backend.from_memory(WEIGHT, address, 64 * 64, owner)
    del owner
    assert (packed.data_ptr(), packed.nbytes) == (address, 64 * 64)
    assert kept() is not None
    del packed
    gc.collect()
    assert kept() is None
    backend.close()


def test_lifetime_a_kept_traceback_keeps_no_native_memory_after_close():
    def fail():
        backend = CpuBackend(num_threads=2)
        SmallModel(backend).decode([(0, 0, 3)], 1)
        backend.close()
        raise LookupError("with a frame that holds the backend")

    before = _num_native()
    with pytest.raises(LookupError) as kept:
        fail()
    assert _num_native() == before
    assert kept.tb is not None


MAKE = """
import gc, os, sys, threading, time, warnings
from qwen3_a8w8.errors import KernelUnavailableError
from qwen3_a8w8.kernels.cpu.backend import CpuBackend
from tests.kernels.small_model import SmallModel

def make():
    model = SmallModel(CpuBackend(num_threads=2))
    model.decode([(0, 0, 3)], 1)
    return model
"""

ENDS = {
    "kept traceback in a frozen cycle": """
def fail():
    model = make()
    model.itself = model
    raise LookupError
try:
    fail()
except LookupError as error:
    sys.kept = error
gc.freeze()
sys.exit(0)
""",
    "idle daemon thread": """
def idle():
    model = make()
    ready.set()
    time.sleep(600)
ready = threading.Event()
threading.Thread(target=idle, daemon=True).start()
ready.wait()
""",
    # Only native calls: a torch call that the end of the process interrupts would abort it.
    "busy daemon thread": """
def work():
    model = make()
    checks, check = [], model.decode_fn.check
    model.decode_fn = lambda **args: checks.append(check(**args))
    model.decode([(seq, 0, 3) for seq in range(16)], 16)
    ready.set()
    try:
        while True:
            checks[0]()
    except KernelUnavailableError:  # closed at the end of the process
        time.sleep(600)
ready = threading.Event()
threading.Thread(target=work, daemon=True).start()
ready.wait()
time.sleep(0.05)
""",
    "forked child": """
model = make()
warnings.simplefilter("ignore")  # of forking with threads
child = os.fork()
if child == 0:
    model.decode([(0, 1, 3)], 1)
    sys.exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""",
    "forked child that closes": """
model = make()
time.sleep(0.2)  # the threads sleep by now, and only the parent has them
warnings.simplefilter("ignore")
child = os.fork()
if child == 0:
    model.compiler.close()
    sys.exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""",
}


def _run(script, *args):
    return subprocess.run(
        [sys.executable, "-c", script, *args],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("end", ENDS)
def test_lifetime_a_process_ends_quietly_without_close(end):
    done = _run(MAKE + ENDS[end])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_lifetime_a_process_with_an_llm_ends_quietly_without_close(tmp_path):
    make_random_qwen3(tmp_path)
    script = """
import logging, sys
logging.disable()
from qwen3_a8w8 import LLM, SamplingParams
llm = LLM(sys.argv[1], num_kv_blocks=8, max_model_len=64, prefill_chunk_tokens=32, num_threads=2)
llm.generate([[5, 6, 7]], SamplingParams(max_tokens=4))
"""
    done = _run(script, str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
