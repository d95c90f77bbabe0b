"""Small random checkpoints made by the libraries that make the real ones.

Weights come from transformers and compressed-tensors, not from our own writer,
so that what our readers are held to is independent of them.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM


def make_random_qwen3(
    path: Path,
    *,
    hidden: int = 256,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 128,
    intermediate: int = 512,
    vocab: int = 512,
    tied: bool = True,
    dtype: torch.dtype = torch.bfloat16,
    seed: int = 0,
    max_shard_size: str = "5GB",
    initializer_range: float = 0.05,
    rope_scaling: dict[str, Any] | None = None,
) -> Qwen3ForCausalLM:
    """Saves a random Qwen3 (no tokenizer) in `path` and returns it, in `dtype`, in eval mode.

    Norm weights are random around 1, so that mixing them up shows.
    """
    model = _random_model(
        Qwen3Config(
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            intermediate_size=intermediate,
            vocab_size=vocab,
            tie_word_embeddings=tied,
            max_position_embeddings=2048,
            rope_parameters={"rope_type": "default", "rope_theta": 1e6, **(rope_scaling or {})},
            bos_token_id=None,
            eos_token_id=vocab - 1,
            initializer_range=initializer_range,
        ),
        seed,
    ).to(dtype)
    model.save_pretrained(path, max_shard_size=max_shard_size)
    return model


def make_compressed_qwen3(
    path: Path, *, quantization: dict[str, Any] | None = None, **options: Any
) -> Qwen3ForCausalLM:
    """Saves a W8A8 Qwen3 in `path`, quantised and compressed by compressed-tensors.

    Returns:
        A plain model with the weights as compressed-tensors decompresses them, in eval mode;
        its activations aren't quantised.
    """
    from compressed_tensors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config
    from compressed_tensors.quantization.utils import calculate_qparams

    model = make_random_qwen3(path, **options)
    config = QuantizationConfig.model_validate(quantization or w8a8_recipe())
    apply_quantization_config(model, config)
    for module in model.modules():
        scheme = getattr(module, "quantization_scheme", None)
        if scheme is not None and scheme.weights is not None:
            is_tensorwise = scheme.weights.strategy == "tensor"
            weight = module.weight.detach().view(1, -1) if is_tensorwise else module.weight.detach()
            low, high = torch.aminmax(weight, dim=1, keepdim=True)
            scale, _ = calculate_qparams(low, high, scheme.weights)
            module.weight_scale.data = scale.to(module.weight.dtype).view_as(module.weight_scale)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(path)
    compressor.update_config(str(path))
    compressor.decompress_model(model)
    plain = Qwen3ForCausalLM(model.config).to(model.dtype)
    plain.load_state_dict({name: model.state_dict()[name] for name in plain.state_dict()})
    return plain.eval()


def w8a8_recipe() -> dict[str, Any]:
    """The usual W8A8 quantisation config, as a user would write it."""
    return {
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 8, "type": "int", "strategy": "channel"},
                "input_activations": {
                    "num_bits": 8,
                    "type": "int",
                    "strategy": "token",
                    "dynamic": True,
                },
            }
        },
        "ignore": ["lm_head"],
    }


def edit_json(path: Path, **changes: Any) -> None:
    """Sets top-level fields of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_tensors(
    path: Path,
    *,
    drop: tuple[str, ...] = (),
    add: dict[str, torch.Tensor] | None = None,
) -> None:
    """Rewrites a safetensors file without some tensors and with others."""
    from safetensors.torch import load_file, save_file

    tensors = {name: value.clone() for name, value in load_file(path).items() if name not in drop}
    save_file({**tensors, **(add or {})}, path, metadata={"format": "pt"})


def edit_header(path: Path, edit: Any) -> None:
    """Rewrites the header of a safetensors file; `edit` changes the parsed object in place."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    edit(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


def _random_model(config: Qwen3Config, seed: int) -> Qwen3ForCausalLM:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.data.uniform_(0.5, 1.5)
    return model.eval()
