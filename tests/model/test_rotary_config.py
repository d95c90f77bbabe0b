"""Rotary parameters as checkpoints state them: read, refused, and the table with YaRN."""

import pytest
import torch
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from qwen3_a8w8.config import ModelConfig
from qwen3_a8w8.errors import CheckpointError
from qwen3_a8w8.model.rope import rope_table

DOCUMENTED = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


def make_raw(**rope_scaling):
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 512,
        "vocab_size": 512,
        "max_position_embeddings": 40960,
        "rope_theta": 1e6,
        "rope_scaling": rope_scaling or None,
    }


def test_yarn_as_documented_gives_four_times_the_native_context():
    config = ModelConfig.from_hf(make_raw(**DOCUMENTED))
    assert config.yarn.attention_factor == pytest.approx(1.1386294361119891)
    assert config.context_length == 131072
    assert ModelConfig.from_hf(make_raw()).context_length == 40960


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"factor": 2.0},
        {"beta_fast": 16.0, "beta_slow": 2.0},
        {"attention_factor": 1.5},
        {"original_max_position_embeddings": 4096},
    ],
)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_rope_table_with_yarn_equals_that_of_transformers(extra, head_dim):
    rope = DOCUMENTED | extra
    config = ModelConfig.from_hf(make_raw(**rope) | {"head_dim": head_dim})
    theirs = Qwen3RotaryEmbedding(
        Qwen3Config(
            hidden_size=256,
            num_attention_heads=4,
            head_dim=head_dim,
            max_position_embeddings=40960,
            rope_parameters={"rope_theta": 1e6, **rope},
        )
    )
    # Theirs multiplies in float32, so far positions differ by the rounding of the angle.
    positions = torch.arange(4096)
    cos, sin = theirs(torch.zeros(1), positions[None])
    half = head_dim // 2
    expected = torch.cat((cos[0, :, :half], sin[0, :, :half]), dim=1)
    table = rope_table(4096, head_dim, config.rope_theta, config.yarn)
    torch.testing.assert_close(table, expected, atol=1e-3, rtol=0)
    torch.testing.assert_close(table[:64], expected[:64], atol=2e-5, rtol=0)


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({"rope_type": "linear", "factor": 2.0}, "rope type 'linear'.*'default' or 'yarn'"),
        ({"rope_type": "yarn"}, "'factor' is None"),
        ({"rope_type": "yarn", "factor": 0.5}, "'factor' is 0.5"),
        ({"type": "yarn", "factor": "4"}, "'factor' is '4'"),
        (DOCUMENTED | {"mscale": 1.0}, r"keys \['mscale'\]"),
        (DOCUMENTED | {"beta_slow": float("nan")}, "'beta_slow' is nan"),
    ],
)
def test_rope_scaling_that_cannot_be_used_is_refused(rope, message):
    with pytest.raises(CheckpointError, match=message):
        ModelConfig.from_hf(make_raw(**rope))


FLAT = {key: value for key, value in make_raw().items() if not key.startswith("rope")}


@pytest.mark.parametrize(
    ("fields", "theta"),
    [
        ({"rope_theta": 5e5}, 5e5),
        ({"rope_theta": 5e5, "rope_scaling": None}, 5e5),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 10000}}, 1e4),
        ({"rope_theta": 10000.0, "rope_parameters": {"rope_theta": 10000}}, 1e4),
        ({"rope_parameters": {"rope_theta": 7e4, "partial_rotary_factor": 1.0}}, 7e4),
        ({"rope_scaling": {**DOCUMENTED, "rope_theta": 3e6}}, 3e6),
        (
            {
                "layer_types": ["full_attention", "full_attention"],
                "rope_parameters": {
                    "full_attention": {"rope_type": "default", "rope_theta": 10000},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
                },
            },
            1e4,
        ),
    ],
)
def test_rotary_base_is_read_from_every_shape_of_config(fields, theta):
    assert ModelConfig.from_hf(FLAT | fields).rope_theta == theta


def test_yarn_is_read_from_parameters_by_layer_type():
    nested = {"full_attention": {**DOCUMENTED, "rope_theta": 1e6}}
    assert ModelConfig.from_hf(FLAT | {"rope_parameters": nested}).yarn.factor == 4.0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "rope_theta is missing"),
        ({"rope_parameters": {"rope_type": "default"}}, "rope_theta is missing"),
        ({"rope_theta": 1e6, "rope_parameters": {"rope_theta": 1e4}}, "expected one base"),
        ({"rope_parameters": {"sliding_attention": {"rope_theta": 1e4}}}, "full_attention is None"),
        ({"rope_theta": 1e6, "rope_parameters": [1]}, r"rope_parameters is \[1\]"),
        ({"rope_theta": 1e6, "partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 0.5}}, "is 0.5"),
        ({"rope_parameters": {"rope_theta": 1e6, "mrope_section": [1]}}, "mrope_section"),
        ({"rope_theta": 1e6, "layer_types": ["sliding_attention"]}, "layer_types has"),
        ({"rope_theta": 0}, "'rope_theta' is 0"),
    ],
)
def test_rotary_parameters_that_cannot_be_read_for_certain_are_refused(fields, message):
    with pytest.raises(CheckpointError, match=message):
        ModelConfig.from_hf(FLAT | fields)
