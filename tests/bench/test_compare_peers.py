"""The pure parts of the comparison with other engines: the GGUF file, the order, the table."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from benchmarks.peers.float_checkpoint import write_float_checkpoint
from benchmarks.peers.gguf_file import write_q8_0
from benchmarks.peers.table import best_ratios, markdown, rows
from benchmarks.peers.workload import Generated, Workload, measure
from qwen3_a8w8.checkpoint.checkpoint import open_checkpoint
from qwen3_a8w8.checkpoint.synth import synth_checkpoint
from qwen3_a8w8.config import ModelConfig

CONFIG = ModelConfig(
    hidden_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    intermediate_size=96,
    vocab_size=128,
    tie_word_embeddings=True,
)


@pytest.fixture(scope="module")
def w8a8(tmp_path_factory):
    directory = tmp_path_factory.mktemp("peers") / "w8a8"
    synth_checkpoint(CONFIG, directory)
    return directory


def test_float_checkpoint_has_the_weights_of_its_source(w8a8, tmp_path):
    write_float_checkpoint(w8a8, tmp_path / "bf16")
    with open_checkpoint(w8a8) as source, open_checkpoint(tmp_path / "bf16") as written:
        assert written.format == "hf-float"
        linear = source.linear(1, "down_proj")
        wanted = (linear.w_q.double() * linear.w_scale.double()[:, None]).to(torch.bfloat16)
        weight = written.linear(1, "down_proj", is_quantized_on_load=False).weight
        assert torch.equal(weight, wanted)
        name = "model.norm.weight"
        assert torch.equal(written.tensor(name), source.tensor(name))


def test_gguf_file_is_read_by_the_gguf_package(w8a8, tmp_path):
    write_q8_0(w8a8, tmp_path / "q8_0.gguf")
    reader = gguf.GGUFReader(tmp_path / "q8_0.gguf")
    assert reader.get_field("general.architecture").contents() == "qwen3"
    assert reader.get_field("qwen3.attention.head_count_kv").contents() == 2
    assert reader.get_field("qwen3.attention.key_length").contents() == 32
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert len(tensors) == 2 + 2 * (7 + 4)
    with open_checkpoint(w8a8) as source:
        linear = source.linear(0, "gate_proj")
        weight = (linear.w_q.float() * linear.w_scale[:, None]).numpy()
        norm = source.tensor("model.layers.1.self_attn.k_norm.weight").numpy()
    gate = tensors["blk.0.ffn_gate.weight"]
    assert gate.tensor_type == gguf.GGMLQuantizationType.Q8_0
    found = gguf.quants.dequantize(gate.data, gate.tensor_type)
    # Half a step of the block's largest value over 127, and a float16 scale.
    assert found.shape == (96, 64)
    assert np.abs(found - weight).max() <= np.abs(weight).max() / 127 * 0.6
    np.testing.assert_array_equal(tensors["blk.1.attn_k_norm.weight"].data, norm)


class _Clock:
    """A peer whose first token takes 10 s and whose others take as long as the batch has rows."""

    def __init__(self):
        self.calls = []

    def generate(self, prompts, num_tokens):
        self.calls.append((len(prompts), len(prompts[0]), num_tokens))
        rows = len(prompts)
        instants = [0.0, *(10.0 + rows * i for i in range(num_tokens))]
        return Generated([[int(prompt[0])] * num_tokens for prompt in prompts], instants)


def test_measure_times_each_part_after_a_warm_up():
    clock = _Clock()
    workload = Workload(num_prefills=2, b1_steps=3, b16_steps=5, vocab_size=100)
    result = measure(clock, workload)
    assert clock.calls == [*[(1, 512, 1)] * 3, (1, 128, 4 + 3 + 1), (16, 128, 4 + 5 + 1)]
    assert result["prefill_s"] == [10.0, 10.0]
    assert result["b1_step_s"] == [1.0] * 3
    assert result["b16_step_s"] == [16.0] * 5
    again = measure(_Clock(), workload)
    assert again["first_ids"] == result["first_ids"]
    assert len(set(result["b16_ids"])) > 1


def _run(name, b1, b16, prefill, ids=(1, 2)):
    return {
        "peer": name,
        "b1_step_s": [b1, b1, 99.0],
        "b16_step_s": [b16],
        "prefill_s": [prefill],
        "first_ids": list(ids),
        "b16_ids": [7, 8],
    }


def test_ratios_compare_a_run_with_its_neighbours():
    table = rows(
        [
            _run("ours", 1.0, 2.0, 4.0),
            _run("llama_cpp", 3.0, 3.0, 12.0, ids=(1, 5)),
            _run("ours", 2.0, 2.0, 4.0),  # the machine has become slower at B1
            _run("vllm_cpu", 6.0, 8.0, 4.0),
            _run("ours", 2.0, 2.0, 4.0),
        ]
    )
    assert [row.name for row in table] == ["ours", "llama_cpp", "vllm_cpu"]
    ours, llama, vllm = table
    assert ours.seconds == {"b1": 2.0, "b16": 2.0, "prefill": 4.0}
    assert ours.spread["b1"] == 2.0
    assert llama.ratios == {"b1": 2.0, "b16": 1.5, "prefill": 3.0}
    assert vllm.ratios == {"b1": 3.0, "b16": 4.0, "prefill": 1.0}
    assert (ours.agreement, llama.agreement) == (1.0, 0.75)
    assert best_ratios(table) == {"b1": 2.0, "b16": 1.5, "prefill": 1.0}
    last = markdown(table, batch_size=16, prefill_tokens=512).splitlines()[-1]
    assert last == "| best peer over ours |  |  |  | 2.00 | 1.50 | 1.00 |  |  |"


def test_variant_of_ours_is_held_against_the_peers_and_is_none():
    table = rows(
        [
            _run("ours", 1.0, 1.0, 1.0),
            _run("ours_int8_lm_head", 0.5, 1.0, 1.0),
            _run("ours", 1.0, 1.0, 1.0),
            _run("llama_cpp", 2.0, 2.0, 2.0),
            _run("ours", 1.0, 1.0, 1.0),
        ]
    )
    assert best_ratios(table)["b1"] == 2.0
    assert best_ratios(table, "ours_int8_lm_head")["b1"] == 4.0


def test_runs_without_a_neighbour_are_refused():
    with pytest.raises(ValueError, match="'ours' first and last"):
        rows([_run("ours", 1.0, 1.0, 1.0), _run("vllm_cpu", 1.0, 1.0, 1.0)])
    with pytest.raises(ValueError, match="no peer"):
        best_ratios(rows([_run("ours", 1.0, 1.0, 1.0)]))
