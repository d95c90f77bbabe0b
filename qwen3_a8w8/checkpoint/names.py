"""Names and shapes of the tensors of a Qwen3 dense checkpoint in Hugging Face's layout.

Shapes are a function of `ModelConfig`. This module doesn't know about files or
dtypes: the reader of a format decides which dtypes a tensor may have.
"""

from __future__ import annotations

import re

from qwen3_a8w8.config import ModelConfig

EMBED_TOKENS = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"

LINEAR_NAMES = (
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
)
"""The seven linears of a decoder layer, in the order in which they run."""

LAYER_NORM_NAMES = (
    "input_layernorm",
    "post_attention_layernorm",
    "self_attn.q_norm",
    "self_attn.k_norm",
)
"""The norms of a decoder layer, by their names inside it."""

_ATTENTION_LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj")
_INV_FREQ = re.compile(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")


def linear_module(layer: int, name: str) -> str:
    """Module path of a linear, such as `model.layers.3.mlp.up_proj`.

    Raises:
        ValueError: `name` isn't one of `LINEAR_NAMES`.
    """
    if name not in LINEAR_NAMES:
        raise ValueError(f"linear {name!r} doesn't exist, expected one of {LINEAR_NAMES}")
    block = "self_attn" if name in _ATTENTION_LINEARS else "mlp"
    return f"model.layers.{layer}.{block}.{name}"


def norm_tensor(layer: int, name: str) -> str:
    """Tensor name of a layer's norm, such as `model.layers.3.self_attn.q_norm.weight`.

    Raises:
        ValueError: `name` isn't one of `LAYER_NORM_NAMES`.
    """
    if name not in LAYER_NORM_NAMES:
        raise ValueError(f"norm {name!r} doesn't exist, expected one of {LAYER_NORM_NAMES}")
    return f"model.layers.{layer}.{name}.weight"


def linear_modules(config: ModelConfig) -> list[str]:
    """Module paths of all decoder linears, layer by layer."""
    return [
        linear_module(layer, name) for layer in range(config.num_layers) for name in LINEAR_NAMES
    ]


def linear_shape(config: ModelConfig, name: str) -> tuple[int, int]:
    """Shape `(out, in)` of the linear `name`."""
    shapes = {
        "q_proj": (config.q_size, config.hidden_size),
        "k_proj": (config.kv_size, config.hidden_size),
        "v_proj": (config.kv_size, config.hidden_size),
        "o_proj": (config.hidden_size, config.q_size),
        "gate_proj": (config.intermediate_size, config.hidden_size),
        "up_proj": (config.intermediate_size, config.hidden_size),
        "down_proj": (config.hidden_size, config.intermediate_size),
    }
    return shapes[name]


def float_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the floating-point tensors: embedding, norms, lm_head if untied."""
    shapes: dict[str, tuple[int, ...]] = {EMBED_TOKENS: (config.vocab_size, config.hidden_size)}
    for layer in range(config.num_layers):
        for name in LAYER_NORM_NAMES:
            width = config.head_dim if name.startswith("self_attn.") else config.hidden_size
            shapes[norm_tensor(layer, name)] = (width,)
    shapes[FINAL_NORM] = (config.hidden_size,)
    if not config.tie_word_embeddings:
        shapes[LM_HEAD] = (config.vocab_size, config.hidden_size)
    return shapes


def linear_weights(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes `(out, in)` of the weights of all decoder linears."""
    return {
        f"{linear_module(layer, name)}.weight": linear_shape(config, name)
        for layer in range(config.num_layers)
        for name in LINEAR_NAMES
    }


def is_harmless_extra(config: ModelConfig, name: str) -> bool:
    """Whether the checkpoint may contain a tensor that the model doesn't need.

    Rotary frequencies are computed from the config; a tied lm_head is a copy of the embedding.
    Any other tensor (a bias, another layer) would change the result if a framework used it, so
    ignoring it silently would be wrong.
    """
    if name == LM_HEAD:
        return config.tie_word_embeddings
    return _INV_FREQ.fullmatch(name) is not None
