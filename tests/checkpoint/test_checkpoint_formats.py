"""Formats in the wild, as libraries write them, against what the libraries make of them."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from qwen3_a8w8.checkpoint.checkpoint import open_checkpoint
from qwen3_a8w8.checkpoint.names import LINEAR_NAMES, linear_module
from qwen3_a8w8.checkpoint.reader import FloatLinear
from qwen3_a8w8.errors import CheckpointError
from qwen3_a8w8.quantization.int8 import fold_zero_point
from tests.support.checkpoints import edit_json, edit_tensors, make_compressed_qwen3, w8a8_recipe
from tests.support.modelslim import make_modelslim_qwen3

FIXTURES = Path(__file__).parents[1] / "fixtures" / "checkpoints"
SMALL = {"hidden": 32, "heads": 2, "kv_heads": 1, "head_dim": 16, "intermediate": 48, "vocab": 64}
NAME = "quant_model_weight_w8a8.safetensors"
Q_PROJ = "model.layers.0.self_attn.q_proj"
DOWN_PROJ = "model.layers.1.mlp.down_proj"


def weights_of(checkpoint):
    """Weights in float32 and steps (0 for those in floating point), by module path."""
    weights, steps = {}, {}
    for layer, name in checkpoint.schemes:
        linear = checkpoint.linear(layer, name)
        module = linear_module(layer, name)
        if isinstance(linear, FloatLinear):
            weights[module], steps[module] = linear.weight.float(), torch.zeros(1, 1)
        else:
            weights[module] = linear.w_q.float() * linear.w_scale[:, None]
            steps[module] = linear.w_scale[:, None]
    return weights, steps


@pytest.mark.parametrize(
    "name",
    [
        "llmcompressor_w8a8",
        "llmcompressor_static_kv",
        "llmcompressor_mixed",
        "torchao",
        "torchao_mixed",
    ],
)
def test_fixture_of_a_library_gives_the_weights_that_it_computes_itself(name):
    expected = load_file(FIXTURES / name / "expected.safetensors")
    with open_checkpoint(FIXTURES / name) as checkpoint:
        weights, _ = weights_of(checkpoint)
    assert len(weights) == 2 * len(LINEAR_NAMES)
    for module, weight in weights.items():
        assert torch.equal(weight.bfloat16(), expected[f"{module}.weight"])


def test_llmcompressor_ignored_linears_stay_in_floating_point():
    with open_checkpoint(FIXTURES / "llmcompressor_mixed") as checkpoint:
        assert checkpoint.float_linears == [(0, "down_proj"), (1, "k_proj")]
        assert checkpoint.notes == ()


def test_llmcompressor_asymmetric_weights_are_within_half_a_new_step():
    path = FIXTURES / "llmcompressor_asymmetric"
    expected = load_file(path / "expected.safetensors")
    with open_checkpoint(path) as checkpoint:
        weights, steps = weights_of(checkpoint)
    stored = load_file(path / "model.safetensors")
    for module, weight in weights.items():
        shifted = stored[f"{module}.weight"].float() - stored[f"{module}.weight_zero_point"].float()
        exact = shifted * stored[f"{module}.weight_scale"].float()
        assert torch.equal(exact.bfloat16(), expected[f"{module}.weight"])
        assert ((weight - exact).abs() <= steps[module] * 0.5001).all()


def test_static_schemes_say_that_they_run_dynamically():
    with open_checkpoint(FIXTURES / "llmcompressor_static_kv") as checkpoint:
        notes = " ".join(checkpoint.notes)
    assert "activations are quantised at run time" in notes
    assert "keys and values are quantised to int8 at run time" in notes


def test_fold_zero_point_is_exact_where_it_fits_and_within_half_a_step_elsewhere():
    w_q = torch.tensor([[-100, 3, 90], [-128, 0, 127]], dtype=torch.int8)
    scale = torch.tensor([0.5, 0.25])
    q, s = fold_zero_point(w_q, scale, torch.tensor([5, 60]))
    assert q[0].tolist() == [-105, -2, 85]
    assert float(s[0]) == 0.5
    exact = (w_q[1].float() - 60) * 0.25
    assert float(s[1]) == pytest.approx(188 * 0.25 / 127)
    assert ((q[1].float() * s[1] - exact).abs() <= s[1] * 0.5001).all()


@pytest.mark.parametrize("nested", [False, True])
def test_old_spellings_of_the_config_are_read(tmp_path, nested):
    make_compressed_qwen3(tmp_path, **SMALL)
    path = tmp_path / "config.json"
    quantization = json.loads(path.read_text())["quantization_config"]
    group = quantization["config_groups"]["group_0"]
    for part in ("weights", "input_activations"):
        for field in ("actorder", "scale_dtype", "zp_dtype", "symmetric"):
            group[part].pop(field, None)
    group.pop("format", None)
    if nested:
        quantization = {"quant_method": "compressed-tensors", "quantization_config": quantization}
        edit_json(path, quantization_config=quantization)
    else:
        edit_json(path, quantization_config=None, compression_config=quantization)
    with open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.format == "compressed-tensors"
        assert checkpoint.float_linears == []


def test_groups_and_targets_by_name_expression_and_class(tmp_path):
    recipe = w8a8_recipe()
    (group,) = recipe["config_groups"].values()
    tensorwise = {**group, "weights": {**group["weights"], "strategy": "tensor"}}
    recipe["config_groups"]["other"] = {**tensorwise, "targets": ["re:.*mlp.up_proj"]}
    recipe["ignore"] = ["lm_head", "re:.*layers.0.*"]
    make_compressed_qwen3(tmp_path, quantization=recipe, **SMALL)
    with open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.float_linears == [(0, name) for name in LINEAR_NAMES]
        assert checkpoint.schemes[1, "up_proj"].description == "int8, per tensor"
        assert checkpoint.schemes[1, "down_proj"].description == "int8, per channel"
        scale = checkpoint.linear(1, "up_proj").w_scale
        assert scale.shape == (48,)
        assert scale.unique().numel() == 1


@pytest.mark.parametrize("is_column", [True, False])
@pytest.mark.parametrize("default", ["W8A8_DYNAMIC", "W8A8", "W8A8_MIX"])
def test_modelslim_types_and_scale_shapes_give_the_weights_of_the_format(
    tmp_path, default, is_column
):
    kinds = {DOWN_PROJ: "FLOAT", Q_PROJ: "W8A8_DYNAMIC"}
    expected = make_modelslim_qwen3(tmp_path, kinds, default=default, is_column=is_column, **SMALL)
    with open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.format == "modelslim"
        assert checkpoint.float_linears == [(1, "down_proj")]
        assert bool(checkpoint.notes) == (default != "W8A8_DYNAMIC")
        weights, _ = weights_of(checkpoint)
    for module, weight in weights.items():
        torch.testing.assert_close(weight, expected[module], rtol=1e-6, atol=0)


@pytest.mark.parametrize("has_int64_scales", [True, False])
def test_modelslim_static_linears_without_weight_scale_get_it_from_deq_scale(
    tmp_path, has_int64_scales
):
    expected = make_modelslim_qwen3(
        tmp_path,
        default="W8A8",
        has_weight_scale=False,
        has_int64_scales=has_int64_scales,
        file_name="quant_model_weight.safetensors",
        description_name="quant_model_description_w8a8.json",
        **SMALL,
    )
    with open_checkpoint(tmp_path) as checkpoint:
        weights, _ = weights_of(checkpoint)
    for module, weight in weights.items():
        torch.testing.assert_close(weight, expected[module], rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", ["W4A8_DYNAMIC", "W8A16", "C8"])
def test_modelslim_unsupported_type_is_refused_by_name(tmp_path, name):
    make_modelslim_qwen3(tmp_path, **SMALL)
    edit_json(tmp_path / "quant_model_description.json", **{f"{Q_PROJ}.weight": name})
    with pytest.raises(CheckpointError, match=rf"{Q_PROJ}.weight is of type {name!r}"):
        open_checkpoint(tmp_path)


def test_modelslim_tensor_that_the_description_lacks_is_refused_as_such(tmp_path):
    make_modelslim_qwen3(tmp_path, **SMALL)
    edit_json(tmp_path / "quant_model_description.json", **{f"{Q_PROJ}.weight": None})
    with pytest.raises(CheckpointError, match=rf"tensor {Q_PROJ}.weight isn't listed, expected"):
        open_checkpoint(tmp_path)


def test_modelslim_static_linear_with_a_bias_is_refused(tmp_path):
    make_modelslim_qwen3(tmp_path, default="W8A8", **SMALL)
    edit_tensors(
        tmp_path / NAME,
        add={f"{Q_PROJ}.quant_bias": torch.full((32,), 10**6, dtype=torch.int32)},
    )
    with open_checkpoint(tmp_path) as checkpoint:
        with pytest.raises(CheckpointError, match="the linear has a bias"):
            checkpoint.linear(0, "q_proj")


def test_modelslim_norm_bias_is_refused_unless_zero(tmp_path):
    make_modelslim_qwen3(tmp_path, **SMALL)
    bias = "model.layers.0.input_layernorm.bias"
    edit_tensors(tmp_path / NAME, add={bias: torch.zeros(32)})
    open_checkpoint(tmp_path).close()
    edit_tensors(tmp_path / NAME, drop=(bias,), add={bias: torch.ones(32)})
    with pytest.raises(CheckpointError, match=r"asymmetric outlier\s+suppression"):
        open_checkpoint(tmp_path)


ATTENTION = [f"model.layers.0.self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj")]


def test_modelslim_smoothed_norm_is_the_one_that_quantised_linears_read(tmp_path):
    kinds = dict.fromkeys(ATTENTION, "FLOAT")
    make_modelslim_qwen3(tmp_path, kinds, default="W8A8", has_smoothed_norms=True, **SMALL)
    stored = load_file(tmp_path / NAME)
    norms = [f"model.layers.{layer}.input_layernorm" for layer in range(2)]
    with open_checkpoint(tmp_path) as checkpoint:
        found = [checkpoint.tensor(f"{norm}.weight") for norm in norms]
    assert torch.equal(found[0], stored[f"{norms[0]}.weight"].float())
    assert torch.equal(found[1], stored[f"{norms[1]}.module.weight"].float())
    assert torch.equal(2 * found[1], stored[f"{norms[1]}.weight"].float())


def test_modelslim_smoothed_norm_of_linears_of_both_kinds_is_refused(tmp_path):
    kinds = {ATTENTION[1]: "FLOAT"}
    make_modelslim_qwen3(tmp_path, kinds, has_smoothed_norms=True, **SMALL)
    with pytest.raises(CheckpointError, match="q_proj int8, k_proj FLOAT, v_proj int8"):
        open_checkpoint(tmp_path)


def test_modelslim_smoothed_norm_with_a_bias_is_refused(tmp_path):
    make_modelslim_qwen3(tmp_path, has_smoothed_norms=True, **SMALL)
    bias = "model.layers.0.input_layernorm.module.bias"
    edit_tensors(tmp_path / NAME, drop=(bias,), add={bias: torch.ones(32)})
    with pytest.raises(CheckpointError, match=r"asymmetric outlier\s+suppression"):
        open_checkpoint(tmp_path)


def test_modelslim_missing_scale_is_refused_by_name(tmp_path):
    make_modelslim_qwen3(tmp_path, **SMALL)
    edit_tensors(tmp_path / NAME, drop=(f"{Q_PROJ}.weight_scale",))
    with pytest.raises(CheckpointError, match=f"{Q_PROJ}.weight_scale is missing"):
        open_checkpoint(tmp_path)


def test_modelslim_description_that_is_no_json_is_refused(tmp_path):
    make_modelslim_qwen3(tmp_path, **SMALL)
    (tmp_path / "quant_model_description.json").write_text("{")
    with pytest.raises(CheckpointError, match="expected JSON"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "quant_type",
    [
        {"default": {"_type": "Int4WeightOnlyConfig", "_data": {}}},
        "int8_weight_only",
        {"default": {"_type": "FqnToConfig", "_data": {"fqn_to_config": {"a": {"_type": "X"}}}}},
        None,
    ],
)
def test_torchao_other_schemes_are_refused(tmp_path, quant_type):
    for file in (FIXTURES / "torchao").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    edit_json(
        tmp_path / "config.json",
        quantization_config={"quant_method": "torchao", "quant_type": quant_type},
    )
    with pytest.raises(CheckpointError, match="quant_type is"):
        open_checkpoint(tmp_path)
