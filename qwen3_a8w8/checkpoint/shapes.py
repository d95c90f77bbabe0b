"""The published sizes of Qwen3 dense models, by name."""

from __future__ import annotations

from qwen3_a8w8.config import ModelConfig
from qwen3_a8w8.errors import ConfigError

_VOCAB_SIZE = 151936
_EOS_TOKEN_IDS = (151645, 151643)


def _shape(
    hidden_size: int,
    num_layers: int,
    num_heads: int,
    intermediate_size: int,
    *,
    tied: bool = False,
) -> ModelConfig:
    return ModelConfig(
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=8,
        head_dim=128,
        intermediate_size=intermediate_size,
        vocab_size=_VOCAB_SIZE,
        tie_word_embeddings=tied,
        eos_token_ids=_EOS_TOKEN_IDS,
    )


SHAPES: dict[str, ModelConfig] = {
    "qwen3-0.6b": _shape(1024, 28, 16, 3072, tied=True),
    "qwen3-1.7b": _shape(2048, 28, 16, 6144, tied=True),
    "qwen3-4b": _shape(2560, 36, 32, 9728, tied=True),
    "qwen3-8b": _shape(4096, 36, 32, 12288),
    "qwen3-14b": _shape(5120, 40, 40, 17408),
    "qwen3-32b": _shape(5120, 64, 64, 25600),
}
"""Architectures by name, as in their config.json on the hub."""


def named_shape(name: str) -> ModelConfig:
    """The architecture of a published size.

    Raises:
        ConfigError: there is no size with that name.
    """
    shape = SHAPES.get(name)
    if shape is None:
        raise ConfigError(f"shape {name!r} is unknown; expected one of {', '.join(SHAPES)}")
    return shape
