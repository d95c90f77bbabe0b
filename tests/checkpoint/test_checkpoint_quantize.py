"""What we write, read by safetensors, transformers and compressed-tensors."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Qwen3ForCausalLM
from transformers.utils.quantization_config import CompressedTensorsConfig

from qwen3_a8w8.checkpoint.checkpoint import open_checkpoint
from qwen3_a8w8.checkpoint.names import LINEAR_NAMES, linear_module
from qwen3_a8w8.checkpoint.quantize import quantize_checkpoint
from qwen3_a8w8.checkpoint.quantize_options import QuantizeOptions
from qwen3_a8w8.checkpoint.writer import SafetensorsWriter, TensorSpec
from qwen3_a8w8.errors import CheckpointError
from qwen3_a8w8.quantization import dequantize
from tests.support.checkpoints import (
    edit_json,
    edit_tensors,
    make_compressed_qwen3,
    make_random_qwen3,
)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_written_checkpoint_reads_back_within_half_a_step(tmp_path, dtype):
    original = make_random_qwen3(tmp_path / "src", dtype=dtype, tied=False).state_dict()
    summary = quantize_checkpoint(tmp_path / "src", tmp_path / "dst")
    assert summary.path == tmp_path / "dst"
    assert summary.num_linears == 14
    assert summary.source_bytes == (tmp_path / "src" / "model.safetensors").stat().st_size
    stored = load_file(tmp_path / "dst" / "model.safetensors")
    assert summary.written_bytes == sum(t.numel() * t.element_size() for t in stored.values())
    with open_checkpoint(tmp_path / "dst") as checkpoint:
        assert checkpoint.format == "compressed-tensors"
        assert torch.equal(
            checkpoint.tensor("lm_head.weight", dtype=dtype), original["lm_head.weight"]
        )
        for layer in range(2):
            for name in LINEAR_NAMES:
                weight_name = f"{linear_module(layer, name)}.weight"
                weight = original[weight_name].float()
                assert stored[f"{weight_name}_scale"].dtype == dtype
                assert stored[f"{weight_name}_scale"].shape == (weight.shape[0], 1)
                linear = checkpoint.linear(layer, name)
                assert int(linear.w_q.min()) >= -127
                error = (dequantize(linear.w_q, linear.w_scale) - weight).abs()
                assert (error <= linear.w_scale[:, None] * 0.5001).all()


def plain_model_from_ours(source, path):
    """The source model with its linears replaced by what our reader gives, dequantised."""
    state = source.state_dict()
    with open_checkpoint(path) as checkpoint:
        for layer in range(source.config.num_hidden_layers):
            for name in LINEAR_NAMES:
                linear = checkpoint.linear(layer, name)
                weight = dequantize(linear.w_q, linear.w_scale, source.dtype)
                state[f"{linear_module(layer, name)}.weight"] = weight
    model = Qwen3ForCausalLM(source.config).to(source.dtype)
    model.load_state_dict(state)
    return model.eval()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shard_bytes", [2 << 30, 200_000])
def test_transformers_loads_what_we_write_unchanged(tmp_path, tied, shard_bytes):
    source = make_random_qwen3(tmp_path / "src", tied=tied)
    quantize_checkpoint(tmp_path / "src", tmp_path / "dst", max_shard_bytes=shard_bytes)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "dst")
    assert theirs.model.layers[1].mlp.up_proj.weight.dtype == torch.int8
    ids = torch.arange(24).reshape(2, 12)
    with torch.inference_mode():
        found = theirs(ids).logits  # decompresses the weights, too
        unquantised = source(ids).logits
    assert not torch.equal(found, unquantised)
    assert (found - unquantised).norm() < 0.06 * unquantised.norm()
    ours = plain_model_from_ours(source, tmp_path / "dst").state_dict()
    for name, weight in ours.items():
        assert torch.equal(theirs.state_dict()[name], weight), name


# transformers warns whenever a loading option is given for a quantised model.
@pytest.mark.filterwarnings("ignore:You passed `quantization_config`")
@pytest.mark.parametrize("tied", [True, False])
def test_logits_in_transformers_equal_those_of_our_dequantised_weights(tmp_path, tied):
    source = make_random_qwen3(tmp_path / "src", tied=tied, dtype=torch.float32)
    quantize_checkpoint(tmp_path / "src", tmp_path / "dst")
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path / "dst", quantization_config=CompressedTensorsConfig(dequantize=True)
    )
    ours = plain_model_from_ours(source, tmp_path / "dst")
    ids = torch.arange(24).reshape(2, 12)
    with torch.inference_mode():
        torch.testing.assert_close(theirs(ids).logits, ours(ids).logits, rtol=1e-5, atol=1e-5)


def test_shards_and_index_agree_and_respect_the_limit(tmp_path):
    make_random_qwen3(tmp_path / "src", tied=False)
    quantize_checkpoint(tmp_path / "src", tmp_path / "dst", max_shard_bytes=300_000)
    dst = tmp_path / "dst"
    index = json.loads((dst / "model.safetensors.index.json").read_text())
    shards = sorted(path.name for path in dst.glob("*.safetensors"))
    assert shards[0] == f"model-00001-of-{len(shards):05d}.safetensors"
    assert sorted(set(index["weight_map"].values())) == shards
    total = 0
    for shard in shards:
        with safe_open(dst / shard, framework="pt") as file:
            names = list(file.keys())
            assert all(index["weight_map"][name] == shard for name in names)
            tensors = [file.get_tensor(name) for name in names]
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        assert size <= 300_000
        total += size
    assert index["metadata"]["total_size"] == total


def test_tokenizer_and_generation_config_go_along_and_weights_do_not(tmp_path):
    src, dst = tmp_path / "src", tmp_path / "dst"
    make_random_qwen3(src)
    texts = {
        "tokenizer.json": "{}",
        "tokenizer_config.json": "{}",
        "chat_template.jinja": "{{ x }}",
        "generation_config.json": '{"eos_token_id": [3, 4]}',
        "LICENSE": "licence",
    }
    for name, text in texts.items():
        (src / name).write_text(text)
    (src / "pytorch_model.bin").write_bytes(b"pickle")
    quantize_checkpoint(src, dst)
    written = {"config.json", "model.safetensors", "quantization_report.json"}
    assert {path.name for path in dst.iterdir()} == {*texts, *written}
    assert all((dst / name).read_text() == text for name, text in texts.items())
    assert open_checkpoint(dst).config.eos_token_ids == (3, 4)


def test_progress_is_called_once_per_layer(tmp_path):
    make_random_qwen3(tmp_path / "src", layers=3)
    calls = []
    quantize_checkpoint(tmp_path / "src", tmp_path / "dst", lambda *call: calls.append(call))
    assert calls == [(1, 3), (2, 3), (3, 3)]


def test_empty_target_is_filled(tmp_path):
    make_random_qwen3(tmp_path / "src")
    (tmp_path / "dst").mkdir()
    quantize_checkpoint(tmp_path / "src", tmp_path / "dst")
    open_checkpoint(tmp_path / "dst").close()


def test_missing_parents_of_the_target_are_made(tmp_path):
    make_random_qwen3(tmp_path / "src")
    quantize_checkpoint(tmp_path / "src", tmp_path / "a" / "b" / "dst")
    open_checkpoint(tmp_path / "a" / "b" / "dst").close()


def test_target_that_holds_something_is_refused_and_left_alone(tmp_path):
    make_random_qwen3(tmp_path / "src")
    (tmp_path / "dst").mkdir()
    (tmp_path / "dst" / "mine").write_text("mine")
    with pytest.raises(CheckpointError, match="isn't an empty directory"):
        quantize_checkpoint(tmp_path / "src", tmp_path / "dst")
    assert [path.name for path in (tmp_path / "dst").iterdir()] == ["mine"]


def test_target_that_is_a_file_is_refused(tmp_path):
    make_random_qwen3(tmp_path / "src")
    (tmp_path / "dst").write_text("mine")
    with pytest.raises(CheckpointError, match="isn't an empty directory"):
        quantize_checkpoint(tmp_path / "src", tmp_path / "dst")


def test_target_under_a_file_is_refused(tmp_path):
    make_random_qwen3(tmp_path / "src")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(CheckpointError, match="can't be written"):
        quantize_checkpoint(tmp_path / "src", tmp_path / "file" / "dst")


def test_quantised_source_is_refused(tmp_path):
    make_compressed_qwen3(tmp_path / "src")
    with pytest.raises(CheckpointError, match="quantised already"):
        quantize_checkpoint(tmp_path / "src", tmp_path / "dst")


def test_too_little_disk_space_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    make_random_qwen3(tmp_path / "src")
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(CheckpointError, match="1000 are free"):
        quantize_checkpoint(tmp_path / "src", tmp_path / "dst")
    assert [path.name for path in tmp_path.iterdir()] == ["src"]


def test_failure_half_way_leaves_nothing_behind(tmp_path):
    make_random_qwen3(tmp_path / "src")
    name = "model.layers.1.self_attn.o_proj.weight"
    damaged = torch.full((256, 512), float("nan"), dtype=torch.bfloat16)
    edit_tensors(tmp_path / "src" / "model.safetensors", add={name: damaged})
    with pytest.raises(CheckpointError, match=r"layers\.1\.self_attn\.o_proj\.weight"):
        quantize_checkpoint(tmp_path / "src", tmp_path / "dst")
    assert [path.name for path in tmp_path.iterdir()] == ["src"]


def interrupt(done, total):
    raise KeyboardInterrupt


@pytest.mark.parametrize("method", ["rtn", "smoothquant+gptq"])
def test_interrupted_run_continues_and_gives_the_same_files(tmp_path, method):
    make_random_qwen3(tmp_path / "src", layers=3)
    ids = torch.randint(0, 512, (4, 40), generator=torch.Generator().manual_seed(1)).tolist()
    options = QuantizeOptions(method, calibration=tuple(map(tuple, ids)) if method != "rtn" else ())
    for number in range(3):
        with pytest.raises(KeyboardInterrupt):
            quantize_checkpoint(tmp_path / "src", tmp_path / "dst", interrupt, options=options)
        progress = json.loads((tmp_path / ".dst.partial" / "progress.json").read_text())
        assert progress["layers_done"] == number + 1
    quantize_checkpoint(tmp_path / "src", tmp_path / "dst", options=options)
    assert not (tmp_path / ".dst.partial").exists()
    quantize_checkpoint(tmp_path / "src", tmp_path / "whole", options=options)
    for path in (tmp_path / "whole").iterdir():
        assert (tmp_path / "dst" / path.name).read_bytes() == path.read_bytes()


def test_interrupted_run_of_other_options_is_left_alone(tmp_path):
    make_random_qwen3(tmp_path / "src")
    with pytest.raises(KeyboardInterrupt):
        quantize_checkpoint(tmp_path / "src", tmp_path / "dst", interrupt)
    other = QuantizeOptions(scale_search="mse")
    with pytest.raises(CheckpointError, match="other options; remove it"):
        quantize_checkpoint(tmp_path / "src", tmp_path / "dst", options=other)
    assert (tmp_path / ".dst.partial" / "progress.json").exists()


def test_damaged_source_config_is_refused(tmp_path):
    make_random_qwen3(tmp_path / "src")
    edit_json(tmp_path / "src" / "config.json", num_hidden_layers=3)
    with pytest.raises(CheckpointError, match=r"model\.layers\.2\..* is missing"):
        quantize_checkpoint(tmp_path / "src", tmp_path / "dst")
    assert not (tmp_path / "dst").exists()


# The writer by itself


def test_writer_takes_tensors_in_any_order_and_aligns_odd_sizes(tmp_path):
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "odd": torch.randint(-128, 128, (3, 5), generator=generator, dtype=torch.int8),
        "float": torch.randn(3, 1, generator=generator),
        "half": torch.randn(7, generator=generator).to(torch.bfloat16),
    }
    specs = [TensorSpec(name, value.dtype, tuple(value.shape)) for name, value in tensors.items()]
    with SafetensorsWriter(tmp_path, specs) as writer:
        for name in ("half", "odd", "float"):
            writer.write(name, tensors[name])
    found = load_file(tmp_path / "model.safetensors")
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


def test_writer_refuses_what_was_not_declared(tmp_path):
    spec = TensorSpec("a", torch.int8, (2,))
    with SafetensorsWriter(tmp_path, [spec]) as writer:
        with pytest.raises(ValueError, match="wasn't declared"):
            writer.write("b", torch.zeros(2, dtype=torch.int8))
        with pytest.raises(ValueError, match=r"declared torch\.int8 \(2,\)"):
            writer.write("a", torch.zeros(3, dtype=torch.int8))
        writer.write("a", torch.zeros(2, dtype=torch.int8))
        with pytest.raises(ValueError, match="written before"):
            writer.write("a", torch.zeros(2, dtype=torch.int8))


def test_writer_refuses_to_end_with_a_tensor_missing(tmp_path):
    with pytest.raises(ValueError, match="1 declared tensors weren't written"):
        with SafetensorsWriter(tmp_path, [TensorSpec("a", torch.int8, (2,))]):
            pass
