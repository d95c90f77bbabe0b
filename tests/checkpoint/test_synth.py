"""Random checkpoints: readable by others and by us, with sane numbers, streamed to disk."""

import hashlib
import json
import math
import resource

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from qwen3_a8w8 import LLM, SamplingParams
from qwen3_a8w8.checkpoint.checkpoint import open_checkpoint
from qwen3_a8w8.checkpoint.names import LINEAR_NAMES
from qwen3_a8w8.checkpoint.shapes import SHAPES, named_shape
from qwen3_a8w8.checkpoint.synth import synth_checkpoint
from qwen3_a8w8.checkpoint.writer import SafetensorsWriter, TensorSpec
from qwen3_a8w8.cli.main import app
from qwen3_a8w8.config import EngineConfig, ModelConfig
from qwen3_a8w8.errors import CheckpointError, ConfigError, InvalidRequestError
from qwen3_a8w8.kernels.cpu.backend import CpuBackend
from qwen3_a8w8.runner.model_runner import ModelRunner
from tests.support.runners import all_logits

TINY = ModelConfig(
    hidden_size=256,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=128,
    intermediate_size=768,
    vocab_size=1000,
    max_position_embeddings=512,
    eos_token_ids=(998, 999),
)
TINY_TIED = ModelConfig(
    **{name: getattr(TINY, name) for name in TINY.__dataclass_fields__ if name[:3] != "tie"},
    tie_word_embeddings=True,
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp("synth") / "tiny"
    synth_checkpoint(TINY, path)
    return path


def digest(path):
    return {file.name: hashlib.sha256(file.read_bytes()).digest() for file in path.iterdir()}


@pytest.mark.parametrize("config", [TINY, TINY_TIED])
@pytest.mark.parametrize("shard_bytes", [2 << 30, 300_000])
def test_checkpoint_opens_with_the_config_it_was_made_from(tmp_path, config, shard_bytes):
    summary = synth_checkpoint(config, tmp_path / "dst", max_shard_bytes=shard_bytes)
    assert summary.num_linears == 21
    with open_checkpoint(summary.path) as checkpoint:
        assert checkpoint.config == config
        assert checkpoint.format == "compressed-tensors"
        assert summary.written_bytes <= checkpoint.num_bytes < summary.written_bytes + 100_000


def test_linears_keep_the_size_of_their_input_and_rows_differ(tiny):
    gen = torch.Generator().manual_seed(0)
    with open_checkpoint(tiny) as checkpoint:
        for name in LINEAR_NAMES:
            linear = checkpoint.linear(1, name)
            assert int(linear.w_q.min()) >= -127
            weight = linear.w_q.double() * linear.w_scale.double()[:, None]
            x = torch.randn(64, weight.shape[1], generator=gen, dtype=torch.float64)
            assert 0.8 < float((x @ weight.T).std()) < 1.3
            assert len(torch.unique(linear.w_q, dim=0)) == weight.shape[0]
        table = checkpoint.tensor("model.embed_tokens.weight", dtype=torch.float32)
        assert math.isclose(float(table.std()), 1 / 16, rel_tol=0.05)
        assert len(torch.unique(table, dim=0)) == TINY.vocab_size


def test_transformers_runs_it_and_gets_spread_logits(tiny):
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    with torch.inference_mode():
        logits = model(torch.arange(40).reshape(1, 40)).logits[0]
    assert torch.isfinite(logits).all()
    assert 0.3 < float(logits.std()) < 3
    assert len(set(logits.argmax(dim=1).tolist())) > 20


def test_our_runner_agrees_with_transformers(tiny):
    theirs = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    ids = [(37 * i) % 1000 for i in range(20)]
    with torch.inference_mode():
        want = theirs(torch.tensor([ids])).logits[0]
    config = EngineConfig(block_size=16, num_kv_blocks=8)
    with open_checkpoint(tiny) as checkpoint:
        runner = ModelRunner(checkpoint, config, CpuBackend(num_threads=2))
    got = all_logits(runner, ids)
    runner.close()
    assert (got - want).norm() < 0.1 * want.norm()


def test_llm_runs_it_on_token_ids_and_refuses_text(tiny):
    with LLM(str(tiny), num_kv_blocks=8, max_model_len=64, num_threads=2) as llm:
        params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True, logprobs=1)
        (output,) = llm.generate([[1, 2, 3]], params)
        with pytest.raises(InvalidRequestError, match="has no tokenizer; pass prompts as lists"):
            llm.generate("hello", params)
    assert len(output.token_ids) == 5
    assert output.text == ""
    assert output.finish_reason == "length"
    assert len(output.logprobs) == 5


def test_same_seed_gives_the_same_files_and_another_seed_others(tmp_path, tiny):
    synth_checkpoint(TINY, tmp_path / "same")
    synth_checkpoint(TINY, tmp_path / "other", seed=1)
    assert digest(tmp_path / "same") == digest(tiny)
    assert digest(tmp_path / "other")["model.safetensors"] != digest(tiny)["model.safetensors"]


def test_tensor_larger_than_a_piece_is_written_whole(tmp_path):
    # 300,000 x 128 bfloat16 are 77 MB, more than a piece and more numbers than are drawn.
    config = ModelConfig(128, 1, 1, 1, 128, 128, 300_000, tie_word_embeddings=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    synth_checkpoint(config, tmp_path / "dst")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KiB
    with open_checkpoint(tmp_path / "dst") as checkpoint:
        table = checkpoint.tensor("model.embed_tokens.weight")
    assert bool((table != 0).any(dim=1).all())
    assert len(torch.unique(table[::97], dim=0)) == len(table[::97])


@pytest.mark.parametrize(
    "pieces",
    [
        [torch.zeros(2, 3)],
        [torch.zeros(2, 3), torch.zeros(3, 3)],
        [torch.zeros(4, 2)],
        [torch.zeros(4, 3, dtype=torch.float64)],
    ],
)
def test_pieces_that_are_not_the_declared_tensor_are_refused(tmp_path, pieces):
    with SafetensorsWriter(tmp_path, [TensorSpec("x", torch.float32, (4, 3))]) as writer:
        with pytest.raises(ValueError, match=r"tensor x: declared torch.float32 \(4, 3\), found"):
            writer.write_rows("x", pieces)
        writer.write_rows("x", [torch.ones(1, 3), torch.zeros(3, 3)])
    assert load_file(tmp_path / "model.safetensors")["x"].sum() == 3


def test_target_that_holds_something_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="isn't an empty directory"):
        synth_checkpoint(TINY, tmp_path)


def test_shape_that_does_not_fit_the_disk_is_refused_and_leaves_nothing(tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(CheckpointError, match=r"needs 16\d{9} bytes, 1000 are free"):
        synth_checkpoint(SHAPES["qwen3-14b"], tmp_path / "dst")
    assert not list(tmp_path.iterdir())


def test_interrupted_write_leaves_nothing(tmp_path):
    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        synth_checkpoint(TINY, tmp_path / "dst", interrupt)
    assert not list(tmp_path.iterdir())


def test_unknown_shape_is_named_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"'qwen3-13b' is unknown; expected one of qwen3-0.6b"):
        named_shape("qwen3-13b")


@pytest.mark.parametrize(
    ("name", "parameters"),
    # Published numbers of non-embedding parameters, in billions.
    [
        ("qwen3-0.6b", 0.44),
        ("qwen3-1.7b", 1.4),
        ("qwen3-4b", 3.6),
        ("qwen3-8b", 6.95),
        ("qwen3-14b", 13.2),
        ("qwen3-32b", 31.2),
    ],
)
def test_shapes_have_the_published_number_of_parameters(name, parameters):
    config = SHAPES[name]
    attention = config.hidden_size * (2 * config.q_size + 2 * config.kv_size)
    mlp = 3 * config.hidden_size * config.intermediate_size
    found = config.num_layers * (attention + mlp) / 1e9
    assert math.isclose(found, parameters, rel_tol=0.02)


def test_command_writes_a_checkpoint_and_refuses_an_unknown_shape(tmp_path, monkeypatch):
    monkeypatch.setitem(SHAPES, "tiny", TINY)
    result = CliRunner().invoke(app, ["synth", "--shape", "tiny", str(tmp_path / "dst")])
    assert result.exit_code == 0, result.output
    raw = json.loads((tmp_path / "dst" / "config.json").read_text())
    assert raw["quantization_config"]["format"] == "int-quantized"
    refused = CliRunner().invoke(app, ["synth", "--shape", "huge", str(tmp_path / "other")])
    assert isinstance(refused.exception, ConfigError)
    assert refused.output == ""  # no bar of something that doesn't begin


@pytest.mark.parametrize("command", [["synth", "--shape", "qwen3-0.6b"], ["quantize", "demo"]])
def test_command_that_would_write_over_files_says_so_at_once(tmp_path, command):
    (tmp_path / "notes.txt").write_text("mine")
    refused = CliRunner().invoke(app, [*command, str(tmp_path)])
    assert isinstance(refused.exception, CheckpointError)
    assert "isn't an empty directory" in str(refused.exception)
    assert refused.output == ""
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
