"""Backends under test: every instruction path this machine can run, with two threads."""

import pytest

from qwen3_a8w8.kernels.cpu.backend import CpuBackend, runnable_isas


@pytest.fixture(scope="module", params=runnable_isas())
def backend(request):
    backend = CpuBackend(isa=request.param, num_threads=2)
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def by_threads(request, backend):
    """The backend's instruction path with 1, 2 and 4 threads."""
    backends = [CpuBackend(isa=backend.isa, num_threads=n) for n in (1, 2, 4)]
    yield backends
    for other in backends:
        other.close()
