"""Every way a checkpoint can be wrong gives one CheckpointError that says what and where."""

from __future__ import annotations

import copy
import json
import re
import shutil

import pytest
import torch

from qwen3_a8w8.checkpoint.checkpoint import open_checkpoint
from qwen3_a8w8.errors import CheckpointError
from tests.checkpoints import (
    edit_header,
    edit_json,
    edit_tensors,
    make_compressed_qwen3,
    make_random_qwen3,
)

UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def masters(tmp_path_factory):
    """One checkpoint of each kind, made once; tests work on copies."""
    root = tmp_path_factory.mktemp("masters")
    make_random_qwen3(root / "float")
    make_random_qwen3(root / "sharded", max_shard_size="600KB")
    make_compressed_qwen3(root / "w8a8", tied=False)
    return root


@pytest.fixture
def copy_of(masters, tmp_path):
    def make(kind):
        return shutil.copytree(masters / kind, tmp_path / kind)

    return make


def refused(path, *parts):
    """Opens `path`, expects a CheckpointError, and that its message has every part."""
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    for part in parts:
        assert str(part) in str(caught.value)
    assert "\n" not in str(caught.value)


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
    refused(file.parent, file, "begins at byte", "header is damaged")


@pytest.mark.parametrize("entry", [None, [], {"dtype": "BF16"}, {"dtype": 3, "shape": "x"}])
def test_header_entry_of_another_form_is_refused(copy_of, entry):
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


# Tensors


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        (UP, "[512, 256]"),
        ("model.embed_tokens.weight", "[512, 256]"),
        ("model.layers.0.self_attn.k_norm.weight", "[128]"),
        ("model.norm.weight", "[256]"),
    ],
)
def test_missing_tensor_is_refused(copy_of, name, shape):
    path = copy_of("float")
    edit_tensors(path / "model.safetensors", drop=(name,))
    refused(path, path / "model.safetensors", name, "missing", f"BF16/F16/F32 {shape}", "none")


def test_missing_lm_head_of_an_untied_model_is_refused(copy_of):
    path = copy_of("float")
    edit_json(path / "config.json", tie_word_embeddings=False)
    refused(path, "lm_head.weight", "missing", "[512, 256]")


def test_misshapen_tensor_is_refused(copy_of):
    path = copy_of("float")
    wrong = {UP: torch.zeros(256, 512, dtype=torch.bfloat16)}
    edit_tensors(path / "model.safetensors", add=wrong)
    refused(path, path / "model.safetensors", UP, "[512, 256]", "found BF16 [256, 512]")


def test_tensor_of_an_unsupported_dtype_is_refused(copy_of):
    path = copy_of("float")
    wrong = {UP: torch.zeros(512, 256, dtype=torch.float8_e4m3fn)}
    edit_tensors(path / "model.safetensors", add=wrong)
    refused(path, UP, "BF16/F16/F32", "found F8_E4M3 [512, 256]")


@pytest.mark.parametrize(
    "name",
    ["model.layers.0.self_attn.q_proj.bias", "model.layers.2.mlp.up_proj.weight", "score.weight"],
)
def test_tensor_that_the_model_does_not_have_is_refused(copy_of, name):
    path = copy_of("float")
    edit_tensors(path / "model.safetensors", add={name: torch.zeros(3)})
    refused(path, path / "model.safetensors", name, "expected no such tensor", "F32 [3]")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", [UP, "model.embed_tokens.weight", "model.norm.weight"])
def test_values_that_are_not_finite_are_refused_on_reading(copy_of, name, bad):
    path = copy_of("float")
    shape = (256,) if name == "model.norm.weight" else (512, 256)
    damaged = torch.ones(shape, dtype=torch.bfloat16)
    damaged.view(-1)[77] = bad
    edit_tensors(path / "model.safetensors", add={name: damaged})
    checkpoint = open_checkpoint(path)
    with pytest.raises(CheckpointError, match=re.escape(name)) as caught:
        checkpoint.linear(1, "up_proj") if name == UP else checkpoint.tensor(name)
    assert "model.safetensors" in str(caught.value)
    assert "expected finite values" in str(caught.value)


# Quantised checkpoints


def change(quantization, path, value):
    """The quantisation config with the field at `path` set to `value`."""
    changed = copy.deepcopy(quantization)
    *parents, last = path.split(".")
    place = changed
    for parent in parents:
        place = place[parent]
    place[last] = value
    return changed


GROUP = "config_groups.group_0"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("format", "pack-quantized"),
        ("format", None),
        ("kv_cache_scheme", {"num_bits": 8, "type": "float"}),
        ("sparsity_config", {"format": "sparse-24-bitmask"}),
        ("transform_config", {"config_groups": {"R1": {}}}),
        ("config_groups", {}),
        ("config_groups", []),
        (GROUP, None),
        (f"{GROUP}.format", "pack-quantized"),
        (f"{GROUP}.weights", None),
        (f"{GROUP}.weights.num_bits", 4),
        (f"{GROUP}.weights.type", "float"),
        (f"{GROUP}.weights.symmetric", False),
        (f"{GROUP}.weights.strategy", "group"),
        (f"{GROUP}.weights.strategy", "tensor"),
        (f"{GROUP}.weights.dynamic", True),
        (f"{GROUP}.input_activations", None),
        (f"{GROUP}.input_activations.dynamic", False),
        (f"{GROUP}.input_activations.symmetric", False),
        (f"{GROUP}.input_activations.strategy", "tensor"),
        (f"{GROUP}.input_activations.num_bits", 4),
        (f"{GROUP}.output_activations", {"num_bits": 8}),
        (f"{GROUP}.targets", "Linear"),
        ("ignore", []),
        ("ignore", ["re:.*embed.*"]),
        ("ignore", [1]),
        ("ignore", ["lm_head", "re:("]),
    ],
)
def test_unsupported_scheme_is_refused(copy_of, field, value):
    path = copy_of("w8a8")
    quantization = json.loads((path / "config.json").read_text())["quantization_config"]
    changed = change(quantization, field, value)
    edit_json(path / "config.json", quantization_config=changed)
    refused(path, path / "config.json", "quantization_config", field.split(".")[-1])


@pytest.mark.parametrize("pattern", ["model.layers.1.mlp.down_proj", r"re:.*layers\.1.*down_proj"])
def test_linear_kept_in_floating_point_is_refused(copy_of, pattern):
    path = copy_of("w8a8")
    quantization = json.loads((path / "config.json").read_text())["quantization_config"]
    quantization["ignore"] = ["lm_head", pattern]
    edit_json(path / "config.json", quantization_config=quantization)
    refused(path, "model.layers.1.mlp.down_proj", "floating point", "expected int8")


def test_linear_that_no_group_targets_is_refused(copy_of):
    path = copy_of("w8a8")
    quantization = json.loads((path / "config.json").read_text())["quantization_config"]
    quantization["config_groups"]["group_0"]["targets"] = ["re:.*self_attn.*"]
    edit_json(path / "config.json", quantization_config=quantization)
    refused(path, "model.layers.0.mlp.gate_proj and 5 more", "floating point")


@pytest.mark.parametrize("method", ["awq", "gptq", "fp8", "torchao", None])
def test_other_quantisation_method_is_refused(copy_of, method):
    path = copy_of("w8a8")
    edit_json(path / "config.json", quantization_config={"quant_method": method})
    refused(path, "config.json", repr(method), "compressed-tensors")


def test_missing_scale_is_refused(copy_of):
    path = copy_of("w8a8")
    edit_tensors(path / "model.safetensors", drop=(f"{UP}_scale",))
    refused(path, "model.safetensors", f"{UP}_scale", "missing", "[512, 1] or [512]")


def test_weight_left_in_floating_point_is_refused(copy_of):
    path = copy_of("w8a8")
    wrong = {UP: torch.zeros(512, 256, dtype=torch.bfloat16)}
    edit_tensors(path / "model.safetensors", add=wrong)
    refused(path, UP, "expected I8 [512, 256]", "found BF16")


def test_zero_points_are_refused(copy_of):
    path = copy_of("w8a8")
    name = f"{UP}_zero_point"
    edit_tensors(path / "model.safetensors", add={name: torch.zeros(512, 1, dtype=torch.int8)})
    refused(path, name, "expected no such tensor")


@pytest.mark.parametrize(("bad", "said"), [(float("nan"), "finite"), (-1.0, "at least 0")])
def test_scale_that_makes_no_sense_is_refused_on_reading(copy_of, bad, said):
    path = copy_of("w8a8")
    scale = torch.ones(512, 1, dtype=torch.bfloat16)
    scale[5] = bad
    edit_tensors(path / "model.safetensors", add={f"{UP}_scale": scale})
    with pytest.raises(CheckpointError, match=said) as caught:
        open_checkpoint(path).linear(1, "up_proj")
    assert f"{UP}_scale" in str(caught.value)
