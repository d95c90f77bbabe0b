"""The NPU backend, wherever there is a torch_npu: on hardware, or the emulation of tools/.

By hand: [PYTHONPATH=tools/npu_emulation] python -m pytest tests/kernels/npu/on_device
"""

import importlib.util

import pytest

collect_ignore_glob = [] if importlib.util.find_spec("torch_npu") else ["test_*.py"]


@pytest.fixture
def backend():
    from qwen3_a8w8.kernels.npu.backend import NpuBackend

    backend = NpuBackend(num_threads=1)
    yield backend
    backend.close()
