"""The quality gate on a small random model: what passes, and what each defect is called."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import qwen3_a8w8
from qwen3_a8w8.check.material import Material, differences, read_golden
from qwen3_a8w8.check.matrix import matrix_markdown, read_bench
from qwen3_a8w8.check.report import Limits, TextsReport, find_problems
from qwen3_a8w8.check.run import CheckSettings, run_check
from qwen3_a8w8.checkpoint.quantize import quantize_checkpoint
from qwen3_a8w8.checkpoint.resolve import resolve_model
from qwen3_a8w8.cli.main import app
from qwen3_a8w8.errors import CheckpointError, ConfigError
from tests.support.checkpoints import make_random_qwen3
from tests.support.text_fixtures import write_tokenizer_files

DEMO = Path(qwen3_a8w8.__file__).parent / "demo" / "config.json"
# A random model loops at once; that isn't what these tests are about.
SETTINGS = CheckSettings(tokens=(4, 12), limits=Limits(max_repetition=1.0))


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("check") / "source"
    make_random_qwen3(path, initializer_range=0.02)
    write_tokenizer_files(path)
    return path


@pytest.fixture(scope="module")
def quantised(source):
    return quantize_checkpoint(source, source.parent / "quantised").path


@pytest.fixture(scope="module")
def report(source, quantised):
    material = Material.of_model(quantised)
    return run_check(quantised, material, SETTINGS, reference=source)


def test_check_of_a_good_model_passes_close_to_float(report):
    assert report.problems == ()
    assert report.format == "compressed-tensors"
    assert all(report.invariance.values())
    assert len(report.outputs) == 16
    assert report.agreement(12) > 0.9
    texts = report.texts
    assert texts.agreement > 0.9
    assert 0 <= texts.kl < 1e-3
    assert texts.perplexity == pytest.approx(texts.reference_perplexity, rel=1e-2)


def test_check_float_model_predicts_as_transformers_does(source, report):
    from transformers import Qwen3ForCausalLM

    model = Qwen3ForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    total = count = 0
    for text in Material.of_model(source).texts:
        ids = torch.tensor([text])
        with torch.inference_mode():
            logprobs = model(ids).logits[0, :-1].log_softmax(-1)
        total -= logprobs.gather(1, ids[0, 1:, None]).sum().item()
        count += len(text) - 1
    expected = torch.tensor(total / count).exp().item()
    assert report.texts.reference_perplexity == pytest.approx(expected, rel=1e-4)


def test_check_int8_lm_head_stays_within_the_limits(source, quantised, report):
    settings = replace(SETTINGS, enable=("int8_lm_head",))
    golden = [output.token_ids for output in report.outputs]
    found = run_check(
        quantised, Material.of_model(quantised), settings, reference=source, golden=golden
    )
    assert all(found.invariance.values())
    assert found.texts.kl < 1e-2
    assert found.texts.kl != report.texts.kl
    assert found.backend["flags"] == "int8_lm_head"
    speed = {("int8_lm_head",): {"ttft_s": 0.5, "tpot_s": 0.0123, "tokens_per_s": 81.3}}
    table = matrix_markdown([report, found], speed)
    assert "| default |" in table
    row = next(line for line in table.splitlines() if line.startswith("| int8_lm_head |"))
    assert row.endswith("| yes | yes | 500.0 ms | 12.30 ms | 81.3 |")


def test_check_command_writes_and_compares_golden_outputs(quantised, tmp_path):
    golden = tmp_path / "golden.json"
    arguments = ["check", str(quantised), "--tokens", "4", "--max-repetition", "1"]
    result = CliRunner().invoke(app, [*arguments, "--write-golden", str(golden), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["problems"] == []
    content = json.loads(golden.read_text())
    content["outputs"][3][2] += 1
    golden.write_text(json.dumps(content))
    result = CliRunner().invoke(app, [*arguments, "--golden", str(golden)])
    assert result.exit_code == 1
    assert "1 outputs differ from the golden file, the first at prompt 3" in result.output


def test_check_names_the_layer_where_values_stop_being_finite(source, tmp_path):
    for file in source.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.layers.1.post_attention_layernorm.weight"].fill_(3e38)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"layer 1, input of gate_proj/up_proj"):
        run_check(tmp_path, Material.of_model(tmp_path), SETTINGS)


def test_check_reference_of_another_vocabulary_is_refused(source, quantised, tmp_path):
    make_random_qwen3(tmp_path, vocab=600)
    with pytest.raises(CheckpointError, match="has a vocabulary of 600, expected 512"):
        run_check(quantised, Material.of_model(quantised), SETTINGS, reference=tmp_path)


def test_problems_name_what_was_found_and_what_is_allowed(report):
    bad = replace(
        report,
        texts=TextsReport(100, 20.0, 10.0, 0.5, 0.7),
        invariance={"a batch of 16": False, "chunked prefill": True},
        golden_differences={2: 5, 7: 0},
        outputs=tuple(
            replace(output, repetition={4: None, 12: "token 1 x 9 from 0"}, agreement={4: 1, 12: 0})
            for output in report.outputs
        ),
    )
    problems = "\n".join(find_problems(bad, Limits()))
    for said in (
        "a batch of 16 changes bits",
        "100% of the outputs have repetitions within 12 tokens, at most 25%",
        "outputs of 12 tokens agree with the float model on 0.0%, at least 80.0%",
        "top-1 tokens on the texts agree with the float model on 50.0%",
        "KL divergence is 0.7000, at most 0.1",
        "perplexity is 2.000 times the float model's, at most 1.1",
        "2 outputs differ from the golden file, the first at prompt 2",
    ):
        assert said in problems


def test_differences_give_the_first_position_up_to_the_shorter():
    assert differences([[1, 2, 3], [4, 5], [6]], [[1, 2], [4, 6], [7]]) == {1: 1, 2: 0}


@pytest.mark.parametrize("text", ["{", "[]", '{"prompt_set": 0, "outputs": []}'])
def test_golden_file_that_makes_no_sense_is_refused(tmp_path, text):
    (tmp_path / "golden.json").write_text(text)
    with pytest.raises(ConfigError, match="golden file"):
        read_golden(tmp_path / "golden.json")


def test_check_lengths_that_make_no_sense_are_refused():
    with pytest.raises(ConfigError, match="positive output lengths"):
        CheckSettings(tokens=(0,))


@pytest.mark.skipif(not DEMO.is_file(), reason="the demo model isn't in this checkout")
def test_demo_model_passes_its_check_in_its_own_float_model():
    path = resolve_model("demo")
    found = run_check(path, Material.of_model(path), CheckSettings(), reference=path)
    assert found.problems == ()
    assert found.texts.agreement > 0.95
    assert found.texts.kl < 0.01
    assert found.agreement(48) > 0.95


def test_bench_results_of_another_kind_are_refused(tmp_path):
    (tmp_path / "bench.json").write_text(json.dumps({"results": [{"op": "linear"}]}))
    with pytest.raises(ConfigError, match="bench engine --matrix"):
        read_bench(tmp_path / "bench.json")
