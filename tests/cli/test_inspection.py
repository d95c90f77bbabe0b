import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from qwen3_a8w8.checkpoint.checkpoint import open_checkpoint
from qwen3_a8w8.cli.main import app
from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.errors import ConfigError
from qwen3_a8w8.runner.inspection import inspect_checkpoint, layer_ranges
from tests.support.checkpoints import edit_json

FIXTURES = Path(__file__).parents[1] / "fixtures" / "checkpoints"
# Of the fixtures' shape: hidden 32, 2 layers, 2 heads and 1 KV head of 16, intermediate 48.
ATTENTION = 32 * 32 + 2 * 16 * 32 + 32 * 32
MLP = 3 * 48 * 32
SCALES = 4 * (32 + 16 + 16 + 32 + 48 + 48 + 32)
OTHERS = 2 * 64 * 32 + 4 * (2 * (32 + 32 + 16 + 16) + 32) + 4 * 256 * 16


def inspect_fixture(name, **settings):
    with open_checkpoint(FIXTURES / name) as checkpoint:
        return inspect_checkpoint(checkpoint, EngineConfig(**settings), 2**30)


def test_inspection_counts_parameters_memory_and_blocks():
    found = inspect_fixture("llmcompressor_w8a8", num_kv_blocks=10)
    assert found.format == "compressed-tensors"
    assert found.num_parameters == 2 * (ATTENTION + MLP + 96) + 64 * 32 + 32
    assert found.weight_bytes == 2 * (ATTENTION + MLP + SCALES) + OTHERS
    assert found.kv_block_bytes == 2 * 1 * 32 * 2 * (16 + 4)
    assert (found.num_kv_blocks, found.num_kv_tokens) == (10, 9 * 32)
    (group,) = found.groups
    assert (group.count, group.is_float) == (14, False)
    assert group.linears[0] == "q_proj: layers 0-1"


def test_inspection_groups_linears_by_scheme():
    found = inspect_fixture("llmcompressor_mixed")
    kept = next(group for group in found.groups if group.is_float)
    assert kept.linears == ("k_proj: layers 1", "down_proj: layers 0")
    assert kept.num_bytes == 2 * (16 * 32 + 32 * 48)


def test_inspection_of_a_model_that_does_not_fit_says_so():
    with open_checkpoint(FIXTURES / "torchao") as checkpoint:
        with pytest.raises(ConfigError, match="at least 2 are needed"):
            inspect_checkpoint(checkpoint, EngineConfig(), 42_000)


def test_inspection_of_a_bf16_cache_counts_two_bytes_and_no_scales():
    found = inspect_fixture("llmcompressor_w8a8", kv_cache_bytes=2**16, kv_cache_dtype="bf16")
    assert found.kv_cache_dtype == "bf16"
    assert found.kv_block_bytes == 2 * 1 * 32 * 2 * 2 * 16
    assert found.num_kv_blocks == 2**16 // found.kv_block_bytes
    assert inspect_fixture("llmcompressor_w8a8", enable=("bf16_kv_cache",)).kv_cache_dtype == "bf16"


def test_inspection_with_yarn_counts_the_stretched_context(tmp_path):
    for file in (FIXTURES / "llmcompressor_w8a8").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}
    edit_json(tmp_path / "config.json", rope_parameters=yarn)
    with open_checkpoint(tmp_path) as checkpoint:
        found = inspect_checkpoint(checkpoint, EngineConfig(), 2**30)
        assert found.max_model_len == 4 * 256
        with pytest.raises(ConfigError, match="supports 1024 positions"):
            inspect_checkpoint(checkpoint, EngineConfig(max_model_len=1025), 2**30)


@pytest.mark.parametrize(
    ("layers", "text"), [([], ""), ([4], "4"), ([5, 0, 3, 4], "0, 3-5"), ([0, 1, 2], "0-2")]
)
def test_layer_ranges_are_short(layers, text):
    assert layer_ranges(layers) == text


def test_inspect_command_prints_tables_and_json():
    path = str(FIXTURES / "llmcompressor_static_kv")
    result = CliRunner().invoke(app, ["inspect", path, "--memory-gib", "1"])
    assert result.exit_code == 0
    assert "int8, per channel" in result.output
    assert "note: its KV cache scheme" in result.output
    result = CliRunner().invoke(app, ["inspect", path, "--memory-gib", "1", "--json"])
    assert json.loads(result.stdout)["free_bytes"] == 2**30
