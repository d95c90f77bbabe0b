"""Builds the constants of `qwen3.py`'s callables from a checkpoint.

Fuses q, k, v and gate, up along their outputs (exact, since each output channel
has its own scale) and packs each constant for the backend as soon as it is
read, so that at most one layer is in memory twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from qwen3_a8w8.checkpoint import names
from qwen3_a8w8.checkpoint.checkpoint import Checkpoint
from qwen3_a8w8.checkpoint.reader import FloatLinear, Linear, QuantizedLinear
from qwen3_a8w8.config import ModelConfig
from qwen3_a8w8.kernels.program import Ref
from qwen3_a8w8.model.linears import FUSED_LINEARS
from qwen3_a8w8.model.rope import rope_table
from qwen3_a8w8.quantization.int8 import quantize_weight

_NORMS = {
    "input_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
}

TABLE_NAMES = ("rope",)
"""Constants computed from the config and the longest sequence alone."""

Pack = Callable[[Ref, Tensor], Any]


def make_tables(config: ModelConfig, refs: Mapping[str, Ref], pack: Pack) -> dict[str, Any]:
    """Computes and packs the constants that aren't in a checkpoint: `TABLE_NAMES`.

    Args:
        config: the architecture.
        refs: the constants that the compiled callables declare, by name.
        pack: the backend's `pack`.

    Returns:
        Packed constants by name.
    """
    num_positions = int(str(refs["rope"].shape[0]))
    table = rope_table(num_positions, config.head_dim, config.rope_theta, config.yarn)
    return {"rope": pack(refs["rope"], table)}


def load_weights(checkpoint: Checkpoint, refs: Mapping[str, Ref], pack: Pack) -> dict[str, Any]:
    """Reads and packs every constant of a checkpoint, one after the other.

    Args:
        checkpoint: an open checkpoint.
        refs: the constants that the compiled callables declare, by name.
        pack: the backend's `pack`.

    Returns:
        Packed constants by name.

    Raises:
        CheckpointError: a tensor can't be read or isn't finite.
    """
    config = checkpoint.config
    constants: dict[str, Any] = {}

    def add(name: str, tensor: Tensor) -> None:
        constants[name] = pack(refs[name], tensor)

    embedding = checkpoint.tensor(names.EMBED_TOKENS)
    add("embed_tokens", embedding)
    is_tied = config.tie_word_embeddings
    lm_head = embedding if is_tied else checkpoint.tensor(names.LM_HEAD)
    if "lm_head" in refs:
        add("lm_head", lm_head)
    else:
        w_q, w_scale = quantize_weight(lm_head)
        add("lm_head.w_q", w_q)
        add("lm_head.w_scale", w_scale)
    add("final_norm", checkpoint.tensor(names.FINAL_NORM))
    for layer in range(config.num_layers):
        for short, full in _NORMS.items():
            add(f"layers.{layer}.{short}", checkpoint.tensor(names.norm_tensor(layer, full)))
        for fused, parts in FUSED_LINEARS.items():
            linears = {part: checkpoint.linear(layer, part) for part in parts}
            is_mixed = len({type(linear) for linear in linears.values()}) > 1
            groups = (
                {part: [linears[part]] for part in parts}
                if is_mixed
                else {fused: list(linears.values())}
            )
            for name, group in groups.items():
                for constant, tensor in _joined(group).items():
                    add(f"layers.{layer}.{name}.{constant}", tensor)
    return constants


def _joined(linears: Sequence[Linear]) -> dict[str, Tensor]:
    """The constants of linears of one type, concatenated along their outputs."""
    quantized = [linear for linear in linears if isinstance(linear, QuantizedLinear)]
    if quantized:
        return {
            "w_q": torch.cat([linear.w_q for linear in quantized]),
            "w_scale": torch.cat([linear.w_scale for linear in quantized]),
        }
    return {"weight": torch.cat([lin.weight for lin in linears if isinstance(lin, FloatLinear)])}
