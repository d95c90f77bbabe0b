"""Writes ModelSlim checkpoints as its documentation describes them.

msModelSlim itself needs an Ascend stack, so this generator stands in for it; it shares no code
with the reader.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.support.checkpoints import make_random_qwen3


def make_modelslim_qwen3(
    path: Path,
    kinds: dict[str, str] | None = None,
    *,
    default: str = "W8A8_DYNAMIC",
    is_column: bool = True,
    has_int64_scales: bool = False,
    has_weight_scale: bool = True,
    has_smoothed_norms: bool = False,
    file_name: str = "quant_model_weight_w8a8.safetensors",
    description_name: str = "quant_model_description.json",
    **options,
) -> dict[str, torch.Tensor]:
    """Quantises a random model and saves it.

    Args:
        path: directory, made here.
        kinds: type of single linears by module path; all others have `default`.
        default: FLOAT, W8A8, W8A8_DYNAMIC or W8A8_MIX.
        is_column: scales are [n, 1], else [n].
        has_int64_scales: deq_scale holds float32 bits in int64, as for fp16 models.
        has_weight_scale: static linears store weight_scale as well.
        has_smoothed_norms: input_layernorm is stored as `module.weight`, halved, as well.
        file_name: of the weights.
        description_name: of the description.
        options: of `make_random_qwen3`.

    Returns:
        The weight of each linear as the format defines it, float32.
    """
    make_random_qwen3(path, **options)
    source = path / "model.safetensors"
    tensors = load_file(source)
    source.unlink()
    types: dict[str, str] = {"model_quant_type": default, "kv_cache_type": "FLOAT"}
    out: dict[str, torch.Tensor] = {}
    expected: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        module = name.removesuffix(".weight")
        kind = (kinds or {}).get(module, default) if "_proj." in name else "FLOAT"
        types[name] = kind
        if has_smoothed_norms and module.endswith("input_layernorm"):
            out |= {f"{module}.module.weight": tensor / 2, f"{module}.module.bias": 0 * tensor}
            types |= {f"{module}.module.weight": default, f"{module}.module.bias": default}
        if kind == "FLOAT":
            out[name] = tensor
            if "_proj." in name:
                expected[module] = tensor.float()
            continue
        weight = tensor.float()
        scale = weight.abs().amax(dim=1) / 127
        w_q = (weight / scale[:, None]).round().clamp(-128, 127).to(torch.int8)
        expected[module] = w_q.float() * scale[:, None]
        out[name] = w_q
        shaped = scale[:, None] if is_column else scale
        added = {}
        if kind != "W8A8" or has_weight_scale:
            added["weight_scale"] = shaped.contiguous()
            added["weight_offset"] = torch.zeros_like(shaped)
        if kind in ("W8A8", "W8A8_MIX"):
            input_scale, input_offset = torch.tensor([0.03125]), torch.tensor([-7.0])
            deq_scale = scale * input_scale
            sums = w_q.to(torch.int32).sum(dim=1, dtype=torch.int32)
            if has_int64_scales:
                deq_scale = deq_scale.view(torch.int32).to(torch.int64)
            added |= {
                "input_scale": input_scale,
                "input_offset": input_offset.to(torch.int8),
                "deq_scale": deq_scale,
                "quant_bias": 7 * sums,
            }
        for suffix, value in added.items():
            out[f"{module}.{suffix}"] = value
            types[f"{module}.{suffix}"] = kind
    save_file(out, path / file_name, metadata={"format": "pt"})
    (path / description_name).write_text(json.dumps(types))
    return expected
