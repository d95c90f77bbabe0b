"""SmoothQuant, GPTQ and the choice of scales: on single matrices, and on a whole checkpoint."""

import json
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from qwen3_a8w8.checkpoint.checkpoint import open_checkpoint
from qwen3_a8w8.checkpoint.quantize import quantize_checkpoint
from qwen3_a8w8.checkpoint.quantize_options import QuantizeOptions
from qwen3_a8w8.checkpoint.quantize_report import LinearReport, plot_report, suggest_float
from qwen3_a8w8.cli.main import app
from qwen3_a8w8.config import ModelConfig
from qwen3_a8w8.errors import ConfigError
from qwen3_a8w8.quantization.gptq import gptq_quantize, inverse_factor
from qwen3_a8w8.quantization.int8 import quantize_weight, round_to_scale, search_weight_scale
from qwen3_a8w8.quantization.qwen3_layer import layer_forward, rotary_tables
from qwen3_a8w8.quantization.smoothing import smoothing_scales
from tests.support.checkpoints import make_random_qwen3

IDS = torch.randint(0, 512, (8, 48), generator=torch.Generator().manual_seed(1))
CALIBRATION = tuple(map(tuple, IDS.tolist()))


def correlated_inputs(num_tokens, width, seed=0):
    gen = torch.Generator().manual_seed(seed)
    mixing = torch.randn(width, width, generator=gen) / width**0.5
    return torch.randn(num_tokens, width, generator=gen) @ mixing


def test_absmax_scales_are_those_of_quantize_weight():
    weight = torch.randn(40, 70, generator=torch.Generator().manual_seed(0))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        w_q, w_scale = quantize_weight(weight, scale_dtype=dtype)
        scale = search_weight_scale(weight, search="absmax", scale_dtype=dtype)
        assert torch.equal(scale, w_scale)
        assert torch.equal(round_to_scale(weight, scale), w_q)


def test_mse_scales_never_do_worse_than_absmax_and_better_with_an_outlier():
    weight = torch.randn(64, 300, generator=torch.Generator().manual_seed(0))

    def error(scale):
        q = round_to_scale(weight, scale).float()
        return (q * scale[:, None] - weight).square().sum(dim=1)

    absmax = error(search_weight_scale(weight, search="absmax"))
    mse = error(search_weight_scale(weight, search="mse"))
    assert (mse <= absmax).all()
    assert (mse < absmax).any()


def test_gptq_lowers_the_output_error_of_rounding_on_correlated_inputs():
    weight = torch.randn(48, 200, generator=torch.Generator().manual_seed(1))
    x = correlated_inputs(1000, 200)
    scale = search_weight_scale(weight, search="absmax") * 8  # coarse, so that it matters
    factor = inverse_factor(x.T @ x)

    def error(w_q):
        return float((x @ (w_q.float() * scale[:, None] - weight).T).norm())

    rounded = round_to_scale(weight, scale)
    assert error(gptq_quantize(weight, scale, factor)) < 0.75 * error(rounded)


@pytest.mark.parametrize("tile", [64, 100, 1024])
def test_gptq_factor_is_the_upper_one_of_the_damped_inverse(tile):
    x = correlated_inputs(1000, 200)
    hessian = x.T @ x
    damped = hessian.double()
    damped.diagonal().add_(0.01 * hessian.diagonal().double().mean())
    expected = torch.linalg.cholesky(torch.linalg.inv(damped), upper=True)
    factor = inverse_factor(hessian, tile=tile)
    assert factor.data_ptr() == hessian.data_ptr()
    torch.testing.assert_close(factor.double(), expected, rtol=0, atol=1e-5 * expected.max())
    assert not factor.tril(-1).any()


def test_gptq_hessian_that_is_not_positive_definite_is_refused():
    with pytest.raises(ValueError, match="more damping"):
        inverse_factor(torch.tensor([[1.0, 5.0], [5.0, 1.0]]))


def test_gptq_with_uncorrelated_inputs_is_round_to_nearest():
    weight = torch.randn(8, 130, generator=torch.Generator().manual_seed(2))
    scale = search_weight_scale(weight, search="absmax")
    factor = inverse_factor(torch.eye(130) * 3)
    assert torch.equal(gptq_quantize(weight, scale, factor), round_to_scale(weight, scale))


def test_gptq_inputs_that_never_occur_are_rounded_plainly():
    weight = torch.randn(8, 20, generator=torch.Generator().manual_seed(2))
    x = correlated_inputs(100, 20)
    x[:, 7] = 0
    scale = search_weight_scale(weight, search="absmax")
    w_q = gptq_quantize(weight, scale, inverse_factor(x.T @ x))
    assert torch.equal(w_q[:, 7], round_to_scale(weight, scale)[:, 7])


def test_smoothing_changes_nothing_in_exact_arithmetic_and_flattens_outliers():
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(0))
    norm = (torch.rand(32) + 0.5).bfloat16()
    norm[3] *= 50
    weight = torch.randn(16, 32, generator=torch.Generator().manual_seed(1))
    absmax = (x * norm.float()).abs().amax(dim=0)
    smoothed, factors = smoothing_scales(absmax, [weight], norm)
    assert smoothed.dtype == torch.bfloat16
    before = (x * norm.float()) @ weight.T
    after = (x * smoothed.float()) @ (weight * factors).T
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)
    flat = (x * smoothed.float()).abs().amax(dim=0)
    assert flat.max() / flat.median() < 0.3 * absmax.max() / absmax.median()


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}


@pytest.mark.parametrize("rope_scaling", [None, YARN], ids=["plain", "yarn"])
def test_layer_forward_equals_transformers(tmp_path, rope_scaling):
    model = make_random_qwen3(tmp_path, dtype=torch.float32, layers=1, rope_scaling=rope_scaling)
    layer = model.model.layers[0]
    state = {name.removesuffix(".weight"): t for name, t in layer.state_dict().items()}
    short = {name.split(".")[-1] if "proj" in name else name: t for name, t in state.items()}
    config = ModelConfig.from_hf(json.loads((tmp_path / "config.json").read_text()))
    hidden = torch.randn(1, 30, 256, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        rope = model.model.rotary_emb(hidden, torch.arange(30)[None])
        mask = torch.full((30, 30), float("-inf")).triu(1)[None, None]
        expected = layer(hidden, position_embeddings=rope, attention_mask=mask)
        expected = expected[0] if isinstance(expected, tuple) else expected
        found = layer_forward(config, short, hidden[0], rotary_tables(config, 30))
    torch.testing.assert_close(found, expected.reshape(30, 256), rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A model with outlier channels behind its norms, and its logits."""
    path = tmp_path_factory.mktemp("source")
    model = make_random_qwen3(path)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.input_layernorm.weight[5] *= 40
            layer.post_attention_layernorm.weight[9] *= 40
    model.save_pretrained(path)
    return path, model


@pytest.mark.parametrize("method", ["smoothquant", "smoothquant+gptq"])
def test_methods_write_what_transformers_loads_and_come_closer_than_rtn(source, tmp_path, method):
    path, model = source
    kept = ("layers.0.mlp.down_proj$",)
    errors = {}
    for name in ("rtn", method):
        options = QuantizeOptions(name, "mse", kept, CALIBRATION)
        summary = quantize_checkpoint(path, tmp_path / name, options=options)
        assert (summary.num_linears, summary.num_kept) == (13, 1)
        report = json.loads(summary.report.read_text())
        assert report["settings"]["method"] == name
        errors[name] = {line["module"]: line["output_error"] for line in report["linears"]}
    smoothed = [module for module in errors["rtn"] if module.endswith(("q_proj", "up_proj"))]
    assert all(errors[method][module] < errors["rtn"][module] for module in smoothed)
    with open_checkpoint(tmp_path / method) as checkpoint:
        assert checkpoint.float_linears == [(0, "down_proj")]
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / method)
    with torch.inference_mode():
        expected, found = model(IDS).logits.float(), theirs(IDS).logits.float()
    assert (found - expected).norm() < 0.06 * expected.norm()


def test_suggestion_compares_linears_with_their_own_kind():
    def report(layer, name, error, is_kept=False):
        return LinearReport(f"m.{layer}.{name}", layer, name, is_kept, 0.01, error, 2.0)

    reports = [report(layer, "q_proj", 0.01) for layer in range(8)]
    reports += [report(layer, "down_proj", 0.05) for layer in range(6)]
    reports += [report(6, "down_proj", 0.9), report(7, "down_proj", 2.0)]
    reports += [report(8, "down_proj", 3.0, is_kept=True), report(8, "q_proj", 0.03)]
    assert suggest_float(reports) == ["m.7.down_proj", "m.6.down_proj"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"method": "awq"}, "expected one of rtn, smoothquant, smoothquant"),
        ({"method": "smoothquant"}, "needs calibration data"),
        ({"scale_search": "max"}, "absmax, mse"),
        ({"keep_float": ("(",)}, "isn't a regular expression"),
        ({"calibration": ((),)}, "empty sequence"),
        ({"alpha": 1.5}, "from 0 to 1"),
        ({"damping": 0.0}, "above 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        QuantizeOptions(**options)


def test_calibration_for_another_vocabulary_is_refused(source, tmp_path):
    options = QuantizeOptions(calibration=((1, 512),))
    with pytest.raises(ConfigError, match="sequence 0 has the token id 512, expected 0 to 511"):
        quantize_checkpoint(source[0], tmp_path / "dst", options=options)


def test_command_quantises_with_a_calibration_file(source, tmp_path):
    file = tmp_path / "data.jsonl"
    file.write_text("\n".join(json.dumps({"token_ids": list(ids)}) for ids in CALIBRATION) + "\n\n")
    arguments = ["quantize", str(source[0]), str(tmp_path / "dst"), "--method", "smoothquant+gptq"]
    arguments += ["--calibration", str(file), "--keep-float", "k_proj", "--max-sequences", "3"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "dst" / "quantization_report.json").read_text())
    assert report["settings"]["calibration_tokens"] == 3 * 48
    assert [line["is_kept"] for line in report["linears"]].count(True) == 2


def test_picture_without_matplotlib_is_refused_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"pip install -e .\.\[plots\]"):
        plot_report(tmp_path / "report.json", tmp_path / "report.png")


@pytest.mark.parametrize(
    ("line", "said"),
    [("{", "line 1: expected JSON"), ("[1]", "'text', 'messages' or 'token_ids'"), ("", "none")],
)
def test_calibration_file_that_makes_no_sense_is_refused(tmp_path, line, said):
    from qwen3_a8w8.text.calibration_file import read_calibration_file

    file = tmp_path / "data.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(ConfigError, match=said):
        read_calibration_file(file, tmp_path)
