"""Every way a checkpoint's files can be wrong gives one CheckpointError: what, and where."""

import json

import pytest
import torch

from tests.support.checkpoints import edit_header, edit_json, edit_tensors
from tests.support.refusals import refused

UP = "model.layers.1.mlp.up_proj.weight"


# config.json and the directory


def test_missing_directory_is_refused(tmp_path):
    refused(tmp_path / "nothing", tmp_path / "nothing", "no such directory")


def test_missing_config_is_refused(tmp_path):
    refused(tmp_path, "config.json", "doesn't exist")


@pytest.mark.parametrize("text", ["{", "", "\x00", "{'a': 1}"])
def test_config_that_is_no_json_is_refused(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    refused(tmp_path, "config.json", "expected JSON")


def test_config_that_is_no_utf8_is_refused(tmp_path):
    (tmp_path / "config.json").write_bytes(b"\xff\xfe{}")
    refused(tmp_path, "config.json", "expected JSON")


def test_config_that_is_a_list_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("[1]")
    refused(tmp_path, "config.json", "expected a JSON object, found list")


def test_other_architecture_is_refused(copy_of):
    path = copy_of("float")
    edit_json(path / "config.json", model_type="llama", architectures=["LlamaForCausalLM"])
    refused(path, "config.json", "'llama'", "LlamaForCausalLM", "'qwen3'")


def test_architectures_that_are_no_list_are_refused(copy_of):
    path = copy_of("float")
    edit_json(path / "config.json", architectures=1)
    refused(path, "config.json", "architectures", "expected a list")


def test_absurd_number_of_layers_is_refused(copy_of):
    path = copy_of("float")
    edit_json(path / "config.json", num_hidden_layers=10**30)
    refused(path, "config.json", "num_hidden_layers", "at most 1000")


@pytest.mark.parametrize("eos", [-1, 512, "<eos>", [3, None], True])
def test_eos_id_that_is_no_token_is_refused(copy_of, eos):
    path = copy_of("float")
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    refused(path, "generation_config.json", "eos_token_id", "from 0 to 511")


# Files


def test_directory_without_weights_is_refused(copy_of):
    path = copy_of("float")
    (path / "model.safetensors").unlink()
    refused(path, "model.safetensors", "found no weights")


def test_only_pickled_weights_are_refused_with_a_remedy(copy_of):
    path = copy_of("float")
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    refused(path, "pytorch_model.bin", "never loaded", "save_pretrained")


def test_safetensors_of_another_name_are_named(copy_of):
    path = copy_of("float")
    (path / "model.safetensors").rename(path / "quant_model_weight.safetensors")
    refused(path, "expected model.safetensors", "found quant_model_weight.safetensors")


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_truncated_file_is_refused(copy_of, keep):
    file = copy_of("float") / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    refused(file.parent, file, "truncated", "expected", "found")


def test_file_with_bytes_left_over_is_refused(copy_of):
    file = copy_of("float") / "model.safetensors"
    size = file.stat().st_size
    file.write_bytes(file.read_bytes() + b"x")
    refused(file.parent, file, f"expected {size} bytes, found {size + 1}")


def test_header_that_is_no_json_is_refused(copy_of):
    file = copy_of("float") / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[8:12] = b"!!!!"
    file.write_bytes(data)
    refused(file.parent, file, "header is damaged")


def test_git_lfs_pointer_is_refused_with_a_remedy(copy_of):
    file = copy_of("float") / "model.safetensors"
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    refused(file.parent, file, "git lfs pull")


def test_shape_that_disagrees_with_its_bytes_is_refused(copy_of):
    file = copy_of("float") / "model.safetensors"
    edit_header(file, lambda header: header[UP].update(shape=[512, 255]))
    refused(file.parent, file, UP, f"expected {512 * 255 * 2} bytes", f"found {512 * 256 * 2}")


def test_overlapping_tensors_are_refused(copy_of):
    file = copy_of("float") / "model.safetensors"

    def move(header):
        begin, end = header[UP]["data_offsets"]
        header[UP]["data_offsets"] = [begin - 2, end - 2]

    edit_header(file, move)
    refused(file.parent, file, "starts at byte", "header is damaged")


@pytest.mark.parametrize("entry", [None, [], {"dtype": "BF16"}, {"dtype": 3, "shape": "x"}])
def test_header_entry_of_another_format_is_refused(copy_of, entry):
    file = copy_of("float") / "model.safetensors"
    edit_header(file, lambda header: header.update({UP: entry}))
    refused(file.parent, file, UP, "expected dtype, shape and data_offsets")


# Shards


def test_index_naming_a_missing_shard_is_refused(copy_of):
    path = copy_of("sharded")
    shard = sorted(path.glob("*.safetensors"))[1]
    shard.unlink()
    refused(path, "model.safetensors.index.json", shard.name, "doesn't exist")


def test_index_naming_a_tensor_that_its_shard_lacks_is_refused(copy_of):
    path = copy_of("sharded")
    weight_map = json.loads((path / "model.safetensors.index.json").read_text())["weight_map"]
    edit_tensors(path / weight_map[UP], drop=(UP,))
    refused(path, "index.json", UP, weight_map[UP], "found nowhere")


def test_tensor_in_two_shards_is_refused(copy_of):
    path = copy_of("sharded")
    weight_map = json.loads((path / "model.safetensors.index.json").read_text())["weight_map"]
    other = next(name for name in weight_map.values() if name != weight_map[UP])
    edit_tensors(path / other, add={UP: torch.zeros(512, 256, dtype=torch.bfloat16)})
    refused(path, UP, weight_map[UP], other, "found it in two")


@pytest.mark.parametrize("weight_map", [None, [], {}])
def test_index_without_a_weight_map_is_refused(copy_of, weight_map):
    path = copy_of("sharded")
    edit_json(path / "model.safetensors.index.json", weight_map=weight_map)
    refused(path, "index.json", "weight_map")


def test_index_reaching_outside_its_directory_is_refused(copy_of):
    path = copy_of("sharded")
    edit_json(path / "model.safetensors.index.json", weight_map={UP: "../other.safetensors"})
    refused(path, "index.json", UP, "../other.safetensors", "plain name")
