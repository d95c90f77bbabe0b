"""Zeroed memory that is there when it is asked for."""

import mmap
import os

import numpy as np
import pytest

from qwen3_a8w8.errors import ConfigError
from qwen3_a8w8.kernels import host_memory
from qwen3_a8w8.kernels.host_memory import zeroed

PAGE_BYTES = mmap.PAGESIZE


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * PAGE_BYTES


@pytest.mark.parametrize("advice", [host_memory._MADV_POPULATE_WRITE, 9999])
def test_all_pages_are_there_and_zero(monkeypatch, advice):
    # 9999 is no advice of any kernel, as this one is none of an old kernel.
    monkeypatch.setattr(host_memory, "_MADV_POPULATE_WRITE", advice)
    monkeypatch.setattr(host_memory, "_PIECE_BYTES", 8 << 20)
    num_bytes = (48 << 20) + 5
    before = resident_bytes()
    memory = zeroed(num_bytes, is_taken=True)
    assert resident_bytes() - before >= num_bytes
    assert memory.shape == (num_bytes,)
    assert memory.dtype == np.uint8
    assert not memory.any()
    memory[-1] = 1  # it may be written


def test_memory_that_is_not_taken_comes_as_it_is_used():
    before = resident_bytes()
    memory = zeroed(64 << 20)
    assert resident_bytes() - before < 8 << 20
    assert not memory.any()


def test_more_than_the_machine_can_address_is_refused():
    with pytest.raises(MemoryError, match=f"{1 << 60} bytes can't be had"):
        zeroed(1 << 60)


def test_cache_that_does_not_fit_is_an_error_with_a_remedy(runner):
    with pytest.raises(ConfigError, match=r"KV cache of .* can't be had.* lower num_kv_blocks"):
        runner.device.alloc_cache(1 << 45)


def test_threads_take_all_cores_of_the_process(monkeypatch):
    asked = []
    executor = host_memory.ThreadPoolExecutor
    monkeypatch.setattr(
        host_memory, "ThreadPoolExecutor", lambda count: asked.append(count) or executor(count)
    )
    zeroed(1, is_taken=True)
    assert asked == [len(os.sched_getaffinity(0))]
