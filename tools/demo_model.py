"""The demo model's shape, and A8W8 imitated in floating point.

``Qwen3ForCausalLM`` of transformers with its linears exchanged, so that the
last phase of training and the scoring see the rounding of int8 weights
(symmetric, one scale per output channel), int8 activations (one scale per
token) and an int8 KV cache (one scale per token and head, after RoPE).
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
_MAX_EXPLICIT_LENGTH = 256


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
    """``x`` rounded to int8 with one scale per row of the last dimension.

    The gradient passes straight through.
    """
    x_f32 = x.float()
    scale = x_f32.detach().abs().amax(dim=-1, keepdim=True).clamp(min=1e-8) / 127
    rounded = (x_f32 / scale).round().clamp(-127, 127) * scale
    return (x_f32 + (rounded - x_f32).detach()).to(x.dtype)


class DemoLinear(nn.Linear):
    """A linear that can imitate int8 weights and activations."""

    is_a8w8 = False

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in_features]`` to ``[..., out_features]``."""
        if not self.is_a8w8:
            return functional.linear(x, self.weight)
        return functional.linear(fake_quantise(x), fake_quantise(self.weight))


def _kv_rounding_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """transformers' attention over keys and values that went through int8."""
    sdpa = ALL_ATTENTION_FUNCTIONS["sdpa"]
    return sdpa(module, query, fake_quantise(key), fake_quantise(value), *args, **kwargs)


ALL_ATTENTION_FUNCTIONS.register(_A8W8_ATTENTION, _kv_rounding_attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(
    _A8W8_ATTENTION, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"]
)


def _exchange_linears(model: Qwen3ForCausalLM) -> None:
    for layer in model.model.layers:
        for block in (layer.self_attn, layer.mlp):
            for child in block.children():
                if isinstance(child, nn.Linear):
                    child.__class__ = DemoLinear


def set_a8w8(model: Qwen3ForCausalLM, is_a8w8: bool) -> None:
    """Switch the imitation of A8W8 in the linears on or off."""
    for module in model.modules():
        if isinstance(module, DemoLinear):
            module.is_a8w8 = is_a8w8


def new_model(config: Qwen3Config) -> Qwen3ForCausalLM:
    """A fresh float32 model that can imitate A8W8 in its linears."""
    model = Qwen3ForCausalLM(config)
    _exchange_linears(model)
    return model


def load_model(directory: Path, is_a8w8: bool) -> Qwen3ForCausalLM:
    """The checkpoint in bfloat16, or in float32 with A8W8 imitated (KV cache too)."""
    if not is_a8w8:
        return Qwen3ForCausalLM.from_pretrained(directory, dtype=torch.bfloat16).eval()
    model = Qwen3ForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation=_A8W8_ATTENTION
    ).eval()
    _exchange_linears(model)
    set_a8w8(model, True)
    return model


def _rms_norm(x: Tensor, norm: nn.Module) -> Tensor:
    x_f32 = x.float()
    x_f32 = x_f32 * torch.rsqrt(x_f32.square().mean(-1, keepdim=True) + norm.variance_epsilon)
    return (x_f32 * norm.weight).to(x.dtype)


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


def hidden_states(model: Qwen3ForCausalLM, token_ids: Tensor) -> Tensor:
    """Final hidden states of rows that start at position 0 and are padded at the end.

    The same function as transformers' forward, written out so that it compiles
    into one graph: half again as many tokens a second in training.

    Args:
        model: From :func:`new_model`.
        token_ids: ``[B, T]`` int64.

    Returns:
        ``[B, T, hidden]`` bfloat16, after the last norm.
    """
    head_dim = model.config.head_dim
    num_rows, length = token_ids.shape
    frequencies = model.config.rope_parameters["rope_theta"] ** (
        -torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    )
    angles = torch.arange(length, dtype=torch.float32)[:, None] * frequencies
    cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()  # [T, D / 2]

    x = functional.embedding(token_ids, model.model.embed_tokens.weight).bfloat16()
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        normed = _rms_norm(x, layer.input_layernorm)
        q = attention.q_proj(normed).view(num_rows, length, -1, head_dim).transpose(1, 2)
        k = attention.k_proj(normed).view(num_rows, length, -1, head_dim).transpose(1, 2)
        v = attention.v_proj(normed).view(num_rows, length, -1, head_dim).transpose(1, 2)
        q = _rotate(_rms_norm(q, attention.q_norm), cos, sin)
        k = _rotate(_rms_norm(k, attention.k_norm), cos, sin)
        mixed = _causal_attention(q, k, v).transpose(1, 2)  # [B, T, H, D]
        x = x + attention.o_proj(mixed.reshape(num_rows, length, -1))
        normed = _rms_norm(x, layer.post_attention_layernorm)
        gated = functional.silu(mlp.gate_proj(normed)) * mlp.up_proj(normed)
        x = x + mlp.down_proj(gated)
    return _rms_norm(x, model.model.norm)
