"""The demo model's shape, and A8W8 simulated in floating point.

The model is ``Qwen3ForCausalLM`` of transformers. The simulation is for scoring
without this project's engine: int8 weights (symmetric, one scale per output
channel), int8 activations (one scale per token) and an int8 KV cache (one scale
per token and head, after RoPE).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

_A8W8_ATTENTION = "demo_a8w8"
# Up to here explicit scores are faster on a CPU than the fused kernel's backward.
_MAX_EXPLICIT_LENGTH = 384


def demo_config(vocab_size: int, eos_token_id: int, pad_token_id: int) -> Qwen3Config:
    """Qwen3's architecture, small: 6.5 M parameters at a vocabulary of 2560."""
    return Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=128,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        attention_bias=False,
        bos_token_id=pad_token_id,
        eos_token_id=eos_token_id,
        pad_token_id=pad_token_id,
    )


def fake_quantise(x: Tensor) -> Tensor:
    """``x`` rounded to int8 with one scale per row of the last dimension."""
    scale = x.abs().amax(dim=-1, keepdim=True).clamp(min=1e-8) / 127
    return (x / scale).round().clamp(-127, 127) * scale


class _A8W8Linear(nn.Linear):
    """A linear with simulated int8 weights and activations."""

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in_features]`` to ``[..., out_features]``."""
        return functional.linear(fake_quantise(x), fake_quantise(self.weight))


def _kv_rounding_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """transformers' attention over keys and values rounded through int8."""
    sdpa = ALL_ATTENTION_FUNCTIONS["sdpa"]
    return sdpa(module, query, fake_quantise(key), fake_quantise(value), *args, **kwargs)


ALL_ATTENTION_FUNCTIONS.register(_A8W8_ATTENTION, _kv_rounding_attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(_A8W8_ATTENTION, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])


def load_model(directory: Path, is_a8w8: bool) -> Qwen3ForCausalLM:
    """The checkpoint in bfloat16, or in float32 with simulated A8W8 (KV cache too)."""
    if not is_a8w8:
        return Qwen3ForCausalLM.from_pretrained(directory, dtype=torch.bfloat16).eval()
    model = Qwen3ForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation=_A8W8_ATTENTION
    ).eval()
    for layer in model.model.layers:
        for block in (layer.self_attn, layer.mlp):
            for child in block.children():
                if isinstance(child, nn.Linear):
                    child.__class__ = _A8W8Linear
    return model


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x_f32 = x.float()
    x_f32 = x_f32 * torch.rsqrt(x_f32.square().mean(-1, keepdim=True) + eps)
    return (x_f32 * weight).to(x.dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """``[B, H, T, D]`` queries over ``[B, KV, T, D]`` keys and values."""
    num_rows, num_heads, length, head_dim = q.shape
    num_kv_heads = k.shape[1]
    num_groups = num_heads // num_kv_heads
    if length > _MAX_EXPLICIT_LENGTH:
        k, v = (t.repeat_interleave(num_groups, dim=1) for t in (k, v))
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    q = q.reshape(num_rows * num_kv_heads, num_groups * length, head_dim)
    k = k.reshape(num_rows * num_kv_heads, length, head_dim)
    v = v.reshape(num_rows * num_kv_heads, length, head_dim)
    scores = torch.bmm(q, k.transpose(1, 2)).view(-1, num_groups, length, length)
    is_hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    scores = (scores.float() * head_dim**-0.5).masked_fill(is_hidden, float("-inf"))
    weights = scores.softmax(-1).bfloat16().view(-1, num_groups * length, length)
    return torch.bmm(weights, v).view(num_rows, num_heads, length, head_dim)


def _layer(x: Tensor, cos: Tensor, sin: Tensor, weights: dict[str, Tensor], eps: float) -> Tensor:
    """One decoder layer, ``[B, T, hidden]`` bfloat16 to the same."""

    def linear(x: Tensor, name: str) -> Tensor:
        return functional.linear(x, weights[f"{name}.weight"].to(x.dtype))

    def heads(x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, weights["self_attn.q_norm.weight"].numel())).transpose(1, 2)

    def norm(x: Tensor, name: str) -> Tensor:
        return _rms_norm(x, weights[f"{name}.weight"], eps)

    normed = norm(x, "input_layernorm")
    q = _rotate(norm(heads(linear(normed, "self_attn.q_proj")), "self_attn.q_norm"), cos, sin)
    k = _rotate(norm(heads(linear(normed, "self_attn.k_proj")), "self_attn.k_norm"), cos, sin)
    v = heads(linear(normed, "self_attn.v_proj"))
    mixed = _causal_attention(q, k, v).transpose(1, 2)  # [B, T, H, D]
    x = x + linear(mixed.flatten(2), "self_attn.o_proj")
    normed = norm(x, "post_attention_layernorm")
    gated = functional.silu(linear(normed, "mlp.gate_proj")) * linear(normed, "mlp.up_proj")
    return x + linear(gated, "mlp.down_proj")


# Compiled alone and used for every layer: compiling the whole model takes minutes.
_compiled_layer = torch.compile(_layer, dynamic=False)


def hidden_states(model: Qwen3ForCausalLM, token_ids: Tensor) -> Tensor:
    """Final hidden states of rows that start at position 0 and are padded at the end.

    The same function as transformers' forward in bfloat16, written out so that
    a layer compiles into one graph: twice the tokens a second in training.

    Args:
        model: From transformers, weights in float32.
        token_ids: ``[B, T]`` int64.

    Returns:
        ``[B, T, hidden]`` bfloat16, after the last norm.
    """
    config = model.config
    frequencies = config.rope_parameters["rope_theta"] ** (
        -torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    )
    angles = torch.arange(token_ids.shape[1], dtype=torch.float32)[:, None] * frequencies
    cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()  # [T, D / 2]
    x = functional.embedding(token_ids, model.model.embed_tokens.weight).bfloat16()
    for layer in model.model.layers:
        weights = dict(layer.named_parameters())
        x = _compiled_layer(x, cos, sin, weights, config.rms_norm_eps)
    return _rms_norm(x, model.model.norm.weight, config.rms_norm_eps)
