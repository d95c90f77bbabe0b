"""Model architecture and engine options, as frozen dataclasses.

`ModelConfig` describes one Qwen3 dense checkpoint, `EngineConfig` the options of
the engine that runs it. Neither reads a file: `checkpoint/` builds the first
from a config.json, the CLI and `deployments/settings.py` the second.
"""

from qwen3_a8w8.config.constants import (
    DECODE_BATCH_SIZES,
    MAX_LOGPROBS,
    SCRATCH_BLOCK,
    TOKENS_PER_ROW,
)
from qwen3_a8w8.config.engine_config import KV_CACHE_DTYPES, EngineConfig
from qwen3_a8w8.config.model_config import ModelConfig

__all__ = [
    "DECODE_BATCH_SIZES",
    "KV_CACHE_DTYPES",
    "MAX_LOGPROBS",
    "SCRATCH_BLOCK",
    "TOKENS_PER_ROW",
    "EngineConfig",
    "ModelConfig",
]
