"""A small random model, and a runner of it per backend."""

import pytest

from qwen3_a8w8.kernels.cpu.backend import CpuBackend
from qwen3_a8w8.kernels.reference import ReferenceBackend
from tests.checkpoints import make_random_qwen3
from tests.runners import make_runner

BACKENDS = {"reference": ReferenceBackend, "cpu": CpuBackend}


@pytest.fixture(scope="session")
def random_model(tmp_path_factory):
    path = tmp_path_factory.mktemp("random-qwen3")
    make_random_qwen3(path, seed=11)
    return path


@pytest.fixture(params=BACKENDS)
def runner(request, random_model):
    runner = make_runner(random_model, BACKENDS[request.param]())
    yield runner
    runner.close()
