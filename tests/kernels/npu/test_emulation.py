"""The emulation of torch_npu and the NPU backend on it, for both ends of the versions.

The tests themselves are below `emulated` and `on_device`; all of a version run in one process.
"""

import pytest

from tests.support.npu_emulation import NEWEST, VERSIONS, run_tests

pytestmark = pytest.mark.npu_contract

EMULATED = "tests/kernels/npu/emulated"
ON_DEVICE = "tests/kernels/npu/on_device"


def files(*names):
    return [f"{EMULATED}/test_{name}.py" for name in names]


OPS = files("rows", "linear", "cache", "attention", "metas", "device_rules")
MACHINES = files("graphs", "device", "capabilities")
BACKEND = files("backend", "carried_ids")


def run_of(version):
    """Everything with the newest schemas; with the oldest ones each op, and each call of it."""
    if version == NEWEST:
        return run_tests(*MACHINES, *OPS, *BACKEND, ON_DEVICE)
    return run_tests(*OPS, ON_DEVICE, version=version, expression="emulated or reference or sample")


@pytest.mark.parametrize("version", VERSIONS)
def test_emulated_ops_agree_with_their_documents(version):
    assert run_of(version).check(*OPS) > 100


def test_emulated_graphs_and_devices_behave_as_documented():
    assert run_of(NEWEST).check(*MACHINES) > 20


@pytest.mark.parametrize("version", VERSIONS)
def test_backend_computes_as_the_reference_and_the_same_in_any_batch(version):
    assert run_of(version).check(ON_DEVICE) > 30


def test_backend_finds_what_a_machine_lacks_and_takes_the_next_form():
    assert run_of(NEWEST).check(*BACKEND) > 10


@pytest.mark.parametrize("version", VERSIONS)
def test_wheels_shape_functions_take_the_whole_model_at_14b(version):
    (file,) = files("program_metas")
    assert run_tests(file, version=version, options="device=meta").check(file) == 12
