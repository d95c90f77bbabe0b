"""The emulation of torch_npu keeps the contracts of its ops, for both ends of the versions."""

import pytest

from tests.support.npu_emulation import NEWEST, VERSIONS, run_tests

pytestmark = pytest.mark.npu_contract

EMULATED = "tests/kernels/npu/emulated"


@pytest.mark.parametrize("version", VERSIONS)
def test_emulated_ops_agree_with_their_documents(version):
    files = [
        f"{EMULATED}/test_{name}.py"
        for name in ("rows", "linear", "cache", "attention", "metas", "device_rules")
    ]
    assert run_tests(*files, version=version) > 100


def test_emulated_graphs_and_devices_behave_as_documented():
    files = [f"{EMULATED}/test_{name}.py" for name in ("graphs", "device", "capabilities")]
    assert run_tests(*files) > 20


@pytest.mark.parametrize("version", VERSIONS)
def test_backend_computes_as_the_reference_and_the_same_in_any_batch(version):
    # The newest version's schemas see everything; the oldest ones', each call.
    some = "" if version == NEWEST else "reference or sample"
    assert run_tests("tests/kernels/npu/on_device", version=version, expression=some) > 30


def test_backend_finds_what_a_machine_lacks_and_takes_the_next_form():
    assert run_tests(f"{EMULATED}/test_backend.py") > 10


@pytest.mark.parametrize("version", VERSIONS)
def test_wheels_shape_functions_take_the_whole_model_at_14b(version):
    file = f"{EMULATED}/test_program_metas.py"
    assert run_tests(file, version=version, options="device=meta") == 12
