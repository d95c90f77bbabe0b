"""What our readers give, against transformers and compressed-tensors."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from transformers import Qwen3ForCausalLM

from qwen3_a8w8.checkpoint.checkpoint import open_checkpoint
from qwen3_a8w8.checkpoint.names import LINEAR_NAMES, float_tensors, linear_module
from qwen3_a8w8.checkpoint.quantize import quantize_checkpoint
from qwen3_a8w8.errors import CheckpointError
from qwen3_a8w8.quantization import dequantize
from tests.support.checkpoints import (
    edit_json,
    edit_tensors,
    make_compressed_qwen3,
    make_random_qwen3,
)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("tied", [True, False])
def test_float_linears_are_within_half_a_step_of_the_original(tmp_path, dtype, tied):
    original = make_random_qwen3(tmp_path, dtype=dtype, tied=tied).state_dict()
    with open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.format == "hf-float"
        assert checkpoint.config.tie_word_embeddings is tied
        for layer in range(2):
            for name in LINEAR_NAMES:
                linear = checkpoint.linear(layer, name)
                weight = original[f"{linear_module(layer, name)}.weight"].float()
                assert linear.w_q.dtype == torch.int8
                assert linear.w_q.shape == weight.shape
                assert linear.w_scale.dtype == torch.float32
                expected_scale = weight.abs().amax(dim=1) / 127
                torch.testing.assert_close(linear.w_scale, expected_scale, rtol=1e-6, atol=0)
                error = (dequantize(linear.w_q, linear.w_scale) - weight).abs()
                assert (error <= linear.w_scale[:, None] * 0.5001).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_float_tensors_are_the_original_ones(tmp_path, dtype):
    original = make_random_qwen3(tmp_path, dtype=dtype, tied=False).state_dict()
    with open_checkpoint(tmp_path) as checkpoint:
        for name, shape in float_tensors(checkpoint.config).items():
            tensor = checkpoint.tensor(name)
            wanted = torch.float32 if len(shape) == 1 else torch.bfloat16
            assert tensor.dtype == wanted
            assert torch.equal(tensor, original[name].to(wanted))
            assert torch.equal(checkpoint.tensor(name, dtype=torch.float32), original[name].float())


def test_sharded_checkpoint_gives_the_same_as_a_single_file(tmp_path):
    make_random_qwen3(tmp_path / "single")
    make_random_qwen3(tmp_path / "sharded", max_shard_size="600KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 2
    with (
        open_checkpoint(tmp_path / "single") as single,
        open_checkpoint(tmp_path / "sharded") as sharded,
    ):
        assert sharded.config == single.config
        for name in LINEAR_NAMES:
            assert torch.equal(sharded.linear(1, name).w_q, single.linear(1, name).w_q)
            assert torch.equal(sharded.linear(1, name).w_scale, single.linear(1, name).w_scale)
        assert torch.equal(sharded.tensor("model.norm.weight"), single.tensor("model.norm.weight"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("tied", [True, False])
def test_compressed_tensors_checkpoint_equals_their_dequantisation(tmp_path, dtype, tied):
    theirs = make_compressed_qwen3(tmp_path, dtype=dtype, tied=tied).state_dict()
    lowest = 0
    with open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.format == "compressed-tensors"
        for layer in range(2):
            for name in LINEAR_NAMES:
                linear = checkpoint.linear(layer, name)
                assert linear.w_q.dtype == torch.int8
                assert linear.w_scale.shape == linear.w_q.shape[:1]
                lowest = min(lowest, int(linear.w_q.min()))
                expected = theirs[f"{linear_module(layer, name)}.weight"]
                assert torch.equal(dequantize(linear.w_q, linear.w_scale, dtype), expected)
        for name in float_tensors(checkpoint.config):
            wanted = theirs[name].to(checkpoint.tensor(name).dtype)
            assert torch.equal(checkpoint.tensor(name), wanted)
    assert lowest == -128  # their range; it must come through as it is


def test_ignore_list_with_a_regular_expression_for_lm_head_is_accepted(tmp_path):
    make_compressed_qwen3(tmp_path, tied=False)
    quantization = {**open_quantization(tmp_path), "ignore": ["re:.*lm_head"]}
    edit_json(tmp_path / "config.json", quantization_config=quantization)
    open_checkpoint(tmp_path).close()


def test_flat_weight_scales_are_accepted(tmp_path):
    make_compressed_qwen3(tmp_path, layers=1)
    path = tmp_path / "model.safetensors"
    with open_checkpoint(tmp_path) as checkpoint:
        before = checkpoint.linear(0, "q_proj").w_scale
    flat = {k: v.flatten() for k, v in load_file(path).items() if k.endswith("_scale")}
    edit_tensors(path, add=flat)
    with open_checkpoint(tmp_path) as checkpoint:
        assert torch.equal(checkpoint.linear(0, "q_proj").w_scale, before)


def test_eos_ids_come_from_the_generation_config_if_there_is_one(tmp_path):
    make_random_qwen3(tmp_path)
    (tmp_path / "generation_config.json").unlink(missing_ok=True)
    assert open_checkpoint(tmp_path).config.eos_token_ids == (511,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    assert open_checkpoint(tmp_path).config.eos_token_ids == (7, 9)
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.6}')
    assert open_checkpoint(tmp_path).config.eos_token_ids == (511,)


def test_known_leftovers_are_tolerated(tmp_path):
    embedding = make_random_qwen3(tmp_path).state_dict()["model.embed_tokens.weight"]
    leftovers = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(64),
        "lm_head.weight": embedding.clone(),
    }
    edit_tensors(tmp_path / "model.safetensors", add=leftovers)
    with open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.config.tie_word_embeddings is True
        assert checkpoint.notes == ()


@pytest.mark.parametrize("row", [0, 511])
def test_stored_lm_head_that_differs_from_a_tied_embedding_is_used_as_in_transformers(
    tmp_path, row
):
    lm_head = make_random_qwen3(tmp_path).state_dict()["model.embed_tokens.weight"].clone()
    with open_checkpoint(tmp_path) as checkpoint:
        tied_fingerprint = checkpoint.fingerprint
    lm_head[row] += 1
    edit_tensors(tmp_path / "model.safetensors", add={"lm_head.weight": lm_head})
    theirs = Qwen3ForCausalLM.from_pretrained(tmp_path).lm_head.weight
    with open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.config.tie_word_embeddings is False
        assert "lm_head.weight differs" in " ".join(checkpoint.notes)
        assert torch.equal(checkpoint.tensor("lm_head.weight"), theirs)
        assert not torch.equal(checkpoint.tensor("model.embed_tokens.weight"), theirs)
        assert checkpoint.fingerprint != tied_fingerprint
    quantize_checkpoint(tmp_path, tmp_path / "w8a8")
    with open_checkpoint(tmp_path / "w8a8") as checkpoint:
        assert torch.equal(checkpoint.tensor("lm_head.weight"), theirs)
    assert json.loads((tmp_path / "w8a8/config.json").read_text())["tie_word_embeddings"] is False


def test_stored_lm_head_of_another_shape_than_a_tied_embedding_is_refused(tmp_path):
    make_random_qwen3(tmp_path)
    lm_head = torch.ones(511, 256, dtype=torch.bfloat16)
    edit_tensors(tmp_path / "model.safetensors", add={"lm_head.weight": lm_head})
    with pytest.raises(CheckpointError, match=r"lm_head\.weight: expected .*\[512, 256\]"):
        open_checkpoint(tmp_path)


def test_fingerprint_depends_on_contents_and_not_on_place_or_time(tmp_path):
    make_random_qwen3(tmp_path / "a", seed=1)
    shutil.copytree(tmp_path / "a", tmp_path / "copy", copy_function=shutil.copyfile)
    make_random_qwen3(tmp_path / "b", seed=2)
    make_random_qwen3(tmp_path / "c", seed=1)
    edit_json(tmp_path / "c" / "config.json", rms_norm_eps=1e-5)
    prints = {
        name: open_checkpoint(tmp_path / name).fingerprint for name in ("a", "copy", "b", "c")
    }
    assert prints["a"] == prints["copy"]
    assert len(set(prints.values())) == 3


def test_tensors_stay_valid_after_close_and_new_reads_are_refused(tmp_path):
    original = make_random_qwen3(tmp_path).state_dict()
    checkpoint = open_checkpoint(tmp_path)
    norm = checkpoint.tensor("model.norm.weight")
    checkpoint.close()
    checkpoint.close()
    assert torch.equal(norm, original["model.norm.weight"].float())
    with pytest.raises(CheckpointError, match="closed"):
        checkpoint.tensor("model.norm.weight")


def test_file_replaced_after_opening_is_refused(tmp_path):
    make_random_qwen3(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    wrong = {"model.norm.weight": torch.ones(3)}
    edit_tensors(tmp_path / "model.safetensors", add=wrong)
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight: expected BF16 \[256\]"):
        checkpoint.tensor("model.norm.weight")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="can't be read"):
        checkpoint.tensor("model.norm.weight")


def test_names_that_do_not_exist_are_refused(tmp_path):
    make_random_qwen3(tmp_path)
    with open_checkpoint(tmp_path) as checkpoint:
        with pytest.raises(ValueError, match="qkv_proj"):
            checkpoint.linear(0, "qkv_proj")
        with pytest.raises(ValueError, match=r"lm_head\.weight"):
            checkpoint.tensor("lm_head.weight")


def open_quantization(path):
    return json.loads((path / "config.json").read_text())["quantization_config"]
