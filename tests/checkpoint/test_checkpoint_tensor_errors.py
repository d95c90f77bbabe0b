"""Tensors that don't fit, values that can't be, schemes that aren't run: each a CheckpointError."""

import copy
import json
import re

import pytest
import torch

from qwen3_a8w8.checkpoint.checkpoint import open_checkpoint
from qwen3_a8w8.errors import CheckpointError
from tests.support.checkpoints import edit_json, edit_tensors
from tests.support.refusals import refused

UP = "model.layers.1.mlp.up_proj.weight"


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
        ("sparsity_config", {"format": "sparse-24-bitmask"}),
        ("transform_config", {"config_groups": {"R1": {}}}),
        ("config_groups", {}),
        ("config_groups", []),
        (GROUP, None),
        (f"{GROUP}.format", "pack-quantized"),
        (f"{GROUP}.weights", None),
        (f"{GROUP}.weights.num_bits", 4),
        (f"{GROUP}.weights.type", "float"),
        (f"{GROUP}.weights.strategy", "group"),
        (f"{GROUP}.weights.dynamic", True),
        (f"{GROUP}.input_activations", None),
        (f"{GROUP}.input_activations.strategy", "group"),
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


def test_int8_linear_that_the_config_ignores_is_refused(copy_of):
    path = copy_of("w8a8")
    quantization = json.loads((path / "config.json").read_text())["quantization_config"]
    quantization["ignore"] = ["lm_head", r"re:.*layers\.1.*up_proj"]
    edit_json(path / "config.json", quantization_config=quantization)
    refused(path, UP, "expected BF16/F16/F32 [512, 256]", "found I8")


@pytest.mark.parametrize("method", ["awq", "gptq", "fp8", None])
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


def test_zero_point_that_is_no_integer_is_refused_on_reading(copy_of):
    path = copy_of("w8a8")
    name = f"{UP}_zero_point"
    edit_tensors(path / "model.safetensors", add={name: torch.full((512, 1), 0.5)})
    with pytest.raises(CheckpointError, match="whole numbers") as caught:
        open_checkpoint(path).linear(1, "up_proj")
    assert name in str(caught.value)


@pytest.mark.parametrize(("bad", "said"), [(float("nan"), "finite"), (-1.0, "at least 0")])
def test_scale_that_makes_no_sense_is_refused_on_reading(copy_of, bad, said):
    path = copy_of("w8a8")
    scale = torch.ones(512, 1, dtype=torch.bfloat16)
    scale[5] = bad
    edit_tensors(path / "model.safetensors", add={f"{UP}_scale": scale})
    with pytest.raises(CheckpointError, match=said) as caught:
        open_checkpoint(path).linear(1, "up_proj")
    assert f"{UP}_scale" in str(caught.value)
