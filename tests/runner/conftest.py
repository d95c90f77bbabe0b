"""A small random model, and a runner of it per backend."""

import pytest

from qwen3_a8w8.engine.plan import StepPlan
from qwen3_a8w8.kernels.cpu.backend import CpuBackend
from qwen3_a8w8.kernels.reference import ReferenceBackend
from tests.support.checkpoints import make_random_qwen3
from tests.support.runners import make_runner

BACKENDS = {"reference": ReferenceBackend, "cpu": CpuBackend}


@pytest.fixture(scope="session")
def random_model(tmp_path_factory):
    path = tmp_path_factory.mktemp("random-qwen3")
    make_random_qwen3(path, seed=11)
    return path


@pytest.fixture(scope="module", params=BACKENDS)
def shared_runner(request, random_model):
    runner = make_runner(random_model, BACKENDS[request.param]())
    yield runner
    runner.close()


@pytest.fixture
def runner(shared_runner):
    """One per module and backend, with an empty cache; what a test leaves in it is forgotten."""
    for tensor in shared_runner.device.cache.values():
        tensor.to_continuous_tensor().zero_()
    yield shared_runner
    shared_runner.execute(StepPlan(step_id=0, release=tuple(shared_runner._sequences)))


@pytest.fixture(params=BACKENDS)
def own_runner(request, random_model):
    """One that a test may close."""
    runner = make_runner(random_model, BACKENDS[request.param]())
    yield runner
    runner.close()
