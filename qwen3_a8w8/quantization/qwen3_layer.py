"""One Qwen3 decoder layer in float32 for calibration, with a hook for the inputs of linears.

Uses the short tensor names of a layer ("q_proj", "input_layernorm",
"self_attn.q_norm"); no files, no kernels. Source: "Qwen3 Technical Report",
2025, section 2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from qwen3_a8w8.config import ModelConfig
from qwen3_a8w8.rope_scaling import rotary_frequencies

INPUT_POINTS: Mapping[str, tuple[str, ...]] = {
    "attention": ("q_proj", "k_proj", "v_proj"),
    "attended": ("o_proj",),
    "mlp": ("gate_proj", "up_proj"),
    "gated": ("down_proj",),
}
"""Points of the layer whose values are inputs of linears, with these linears."""

Observe = Callable[[str, Tensor], None]


def rotary_tables(config: ModelConfig, length: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of positions 0 to `length` - 1, each `[length, head_dim]` float32.

    With the checkpoint's YaRN scaling, if it has any.
    """
    frequencies, scale = rotary_frequencies(config.head_dim, config.rope_theta, config.yarn)
    positions = torch.arange(length, dtype=torch.float64)
    angles = torch.outer(positions, torch.tensor(frequencies, dtype=torch.float64))
    doubled = torch.cat((angles, angles), dim=1)
    return (doubled.cos() * scale).float(), (doubled.sin() * scale).float()


def layer_forward(
    config: ModelConfig,
    weights: Mapping[str, Tensor],
    hidden: Tensor,
    rope: tuple[Tensor, Tensor],
    observe: Observe | None = None,
) -> Tensor:
    """Runs one sequence through one layer.

    Args:
        config: the architecture.
        weights: linears `[out, in]` and norms `[width]`, float32, by short name.
        hidden: `[num_tokens, hidden]` float32, position 0 first.
        rope: see `rotary_tables`, at least as long.
        observe: called with (point, its tensor `[num_tokens, width]`) for `INPUT_POINTS`.

    Returns:
        `[num_tokens, hidden]` float32.
    """
    watch = observe or (lambda point, tensor: None)
    num_tokens, dim = hidden.shape[0], config.head_dim
    eps = config.rms_norm_eps

    x = _rms_norm(hidden, weights["input_layernorm"], eps)
    watch("attention", x)

    def heads(name: str) -> Tensor:
        return (x @ weights[name].T).view(num_tokens, -1, dim).transpose(0, 1)  # [heads, T, D]

    q = _rotate(_rms_norm(heads("q_proj"), weights["self_attn.q_norm"], eps), rope)
    k = _rotate(_rms_norm(heads("k_proj"), weights["self_attn.k_norm"], eps), rope)
    group = config.num_heads // config.num_kv_heads
    attended = torch.nn.functional.scaled_dot_product_attention(
        q.unsqueeze(0),
        k.repeat_interleave(group, dim=0).unsqueeze(0),
        heads("v_proj").repeat_interleave(group, dim=0).unsqueeze(0),
        is_causal=True,
    )[0]
    attended = attended.transpose(0, 1).reshape(num_tokens, -1)
    watch("attended", attended)
    hidden = hidden + attended @ weights["o_proj"].T

    x = _rms_norm(hidden, weights["post_attention_layernorm"], eps)
    watch("mlp", x)
    gated = torch.nn.functional.silu(x @ weights["gate_proj"].T) * (x @ weights["up_proj"].T)
    watch("gated", gated)
    return hidden + gated @ weights["down_proj"].T


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps) * weight


def _rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = (table[: x.shape[-2]] for table in rope)
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin
