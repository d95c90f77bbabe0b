"""The NPU backend on emulated machines that lack something, and the order of graph calls."""

import pytest
import torch
import torch_npu
from torch_npu.npu import graphs as emulated_graphs

from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.errors import ConfigError, KernelUnavailableError
from qwen3_a8w8.kernels.npu.backend import NpuBackend
from qwen3_a8w8.runner.model_runner import ModelRunner
from tests.kernels.npu.on_device.models import (
    LENGTHS,
    MODEL_TOLERANCE,
    FixedDecode,
    next_rows,
    prefilled,
    prompt,
    small_model,
)
from tests.kernels.single_op import reference


@pytest.fixture
def backend():
    backend = NpuBackend(num_threads=1)
    yield backend
    backend.close()


def test_decode_is_captured_once_and_replayed_with_new_lengths(backend):
    eager, replayed = prefilled(backend), prefilled(backend)
    fixed = FixedDecode(replayed)
    emulated_graphs.journal.clear()
    for step in range(4):
        rows = [(seq, length + step, 20 + seq + step) for seq, length in enumerate(LENGTHS)]
        rows = rows[: 16 - 3 * step]
        # Fresh arguments each time: always eager.
        assert torch.equal(fixed.run(rows)[: len(rows)], eager.decode(rows, 16)[: len(rows)])
        assert fixed.args["logits"][len(rows) :].isnan().all()
    kinds = [kind for kind, _ in emulated_graphs.journal]
    assert kinds == ["capture", *["update", "replay"] * 3]
    lengths = emulated_graphs.journal[-2][1][0]["actual_seq_lengths_kv"]
    assert lengths == [*(length + 4 for length in LENGTHS[:7]), *[1] * 9]


def test_without_graphs_decode_is_eager_and_says_so(backend, emulated):
    emulated.graph = False
    model = prefilled(backend)
    fixed = FixedDecode(model)
    first, second = fixed.run(next_rows()), fixed.run(next_rows())
    assert torch.equal(first, second)
    assert "not supported by this version of CANN" in backend.describe()["graphs"]


@pytest.mark.parametrize(
    ("op", "kernel", "form"),
    [
        ("npu_add_rms_norm_dynamic_quant", "add_rms_norm_quant", "split"),
        ("npu_rms_norm", "rms_norm", "sixteen"),
        ("npu_dynamic_quant", "dynamic_quant", "sixteen"),
        ("npu_quant_matmul", "quant_matmul", "sixteen"),
        ("mm", "matmul", "sixteen"),
        ("npu_swiglu", "swiglu", "sixteen"),
        ("npu_apply_rotary_pos_emb", "rotary", "plain"),
        ("npu_fused_infer_attention_score", "attention", "sixteen"),
    ],
)
def test_an_op_that_varies_with_the_batch_is_found_and_its_next_form_taken(
    backend, emulated, op, kernel, form
):
    emulated.vary = frozenset({op})
    model = prefilled(backend)
    assert backend.forms[kernel] == form
    assert f"{kernel}: {form}" in backend.describe()["forms"]
    assert backend.is_batch_invariant
    rows = next_rows()
    batch = model.decode(rows, 16)
    for index in (0, 15):
        assert torch.equal(model.decode([rows[index]], 1)[0], batch[index])


def test_antiquant_mode_that_is_missing_is_replaced_by_gathering(emulated):
    emulated.antiquant5 = False
    backend = NpuBackend(num_threads=1)
    models = [small_model(backend), small_model(reference())]
    chunks = [(0, 0, prompt(0, 40)), (1, 0, prompt(1, 7))]
    got, want = (m.prefill(chunks) for m in models)
    assert (got - want).norm() <= MODEL_TOLERANCE * want.norm()
    found = backend.describe()
    assert "mode 5 is not supported" in found["int8_cache"]
    fixed = FixedDecode(models[0])
    first, second = (fixed.run([(0, 40, 5), (1, 7, 6)])[:2] for _ in range(2))
    assert torch.equal(first, second)
    assert "gathered" in backend.describe()["graphs"]
    backend.close()


def test_a_model_larger_than_the_device_is_refused_before_it_is_loaded(monkeypatch):
    monkeypatch.setattr(NpuBackend, "free_memory_bytes", lambda self: 1000)
    config = EngineConfig(device="npu", max_model_len=128, num_kv_blocks=20)
    with pytest.raises(ConfigError, match=r"bytes of weights, but the device has 1000 free"):
        ModelRunner.load("demo", config)


def test_memory_that_is_full_is_not_taken_for_a_missing_mode(monkeypatch):
    def full(*args, **keywords):
        raise torch.OutOfMemoryError("NPU out of memory")

    monkeypatch.setattr(torch_npu, "npu_fused_infer_attention_score", full)
    with pytest.raises(KernelUnavailableError, match="out of memory"):
        NpuBackend(num_threads=1)
