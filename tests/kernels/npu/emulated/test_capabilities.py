"""The capability gate: what it finds, what it refuses, in its own words."""

import os

import pytest

from qwen3_a8w8.errors import KernelUnavailableError
from qwen3_a8w8.kernels.npu.capabilities import probe
from qwen3_a8w8.kernels.npu.device import NpuDevice
from qwen3_a8w8.kernels.select import select_backend


@pytest.mark.parametrize(
    ("soc", "generation"), [(220, "A2"), (225, "A2"), (250, "A3"), (255, "A3")]
)
def test_atlas_a2_and_a3_are_accepted(emulated, soc, generation):
    emulated.soc = soc
    found = probe(NpuDevice())
    assert found.generation == generation
    assert found.reads_int8_cache
    assert found.no_int8_cache == ""
    assert found.is_emulated


@pytest.mark.parametrize("soc", [104, 219, 226, 249, 256])
def test_other_chips_are_refused_with_their_number(emulated, soc):
    emulated.soc = soc
    with pytest.raises(KernelUnavailableError, match=f"SoC number {soc}; Atlas A2 220 to 225"):
        probe(NpuDevice())


def test_missing_cann_is_named(emulated):
    emulated.cann = ""
    with pytest.raises(KernelUnavailableError, match="CANN isn't found; source"):
        probe(NpuDevice())


@pytest.mark.parametrize("version", ["2.1.0", "2.7.0", "2.7.0.post2", "unknown"])
def test_old_torch_npu_is_refused(monkeypatch, version):
    device = NpuDevice()
    monkeypatch.setattr(device.torch_npu, "__version__", version)
    with pytest.raises(KernelUnavailableError, match=f"torch_npu is {version}; install 2.7.1"):
        probe(device)


def test_missing_op_is_named(monkeypatch):
    device = NpuDevice()
    known = device.schema
    monkeypatch.setattr(device, "schema", lambda op: None if op == "npu_swiglu" else known(op))
    with pytest.raises(KernelUnavailableError, match="has no op npu_swiglu"):
        probe(device)


def test_missing_argument_is_named(monkeypatch):
    # As in torch_npu 2.9.0, whose npu_scatter_pa_kv_cache has no cache_mode.
    device = NpuDevice()
    known = device.schema
    monkeypatch.setattr(
        device,
        "schema",
        lambda op: known("npu_swiglu" if op == "npu_scatter_pa_kv_cache" else op),
    )
    with pytest.raises(
        KernelUnavailableError, match="npu_scatter_pa_kv_cache has no argument cache_mode"
    ):
        probe(device)


def test_attention_without_antiquant_mode_5_falls_back_and_says_why(emulated):
    emulated.antiquant5 = False
    found = probe(NpuDevice())
    assert not found.reads_int8_cache
    assert "antiquant mode 5" in found.no_int8_cache
    assert str(found.describe()["int8_cache"]).startswith("gathered and dequantised: ")


def test_a_wrong_answer_of_attention_counts_as_missing(monkeypatch):
    device = NpuDevice()
    right = device.torch_npu.npu_fused_infer_attention_score
    monkeypatch.setattr(
        device.torch_npu,
        "npu_fused_infer_attention_score",
        lambda *args, **kwargs: (right(*args, **kwargs)[0] * 1.25,),
    )
    assert probe(device).no_int8_cache == "antiquant mode 5 is off by 0.25 where 1 is right"


def test_no_device_names_the_variable(monkeypatch):
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "")
    with pytest.raises(KernelUnavailableError, match=r"0 NPUs \(ASCEND_RT_VISIBLE_DEVICES is ''\)"):
        NpuDevice()


@pytest.mark.parametrize("device", ["npu", "auto"])
def test_a_whole_device_is_taken(device):
    backend = select_backend(device, 1)
    assert backend.name == "npu-ascend910b3"
    assert backend.describe()["device"] == "npu"
    backend.close()


def test_auto_says_why_it_did_not_take_the_npu(monkeypatch, caplog):
    # The child that looks has the options of the variable.
    monkeypatch.setenv("NPU_EMULATION", f"{os.environ.get('NPU_EMULATION', '')},soc=104")
    with caplog.at_level("INFO"):
        backend = select_backend("auto", 1)
    assert backend.device == "cpu"
    assert "SoC number 104" in caplog.text
    backend.close()
