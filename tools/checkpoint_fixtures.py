"""Writes tests/fixtures/checkpoints: tiny checkpoints quantised by the libraries themselves.

Run by hand in an environment with llmcompressor and torchao (neither is needed
by this package or its tests):

    python tools/checkpoint_fixtures.py tests/fixtures/checkpoints

Every directory holds a checkpoint as the library saved it and, in
`expected.safetensors`, the weights of its linears as the library itself
dequantises them.
"""

from __future__ import annotations

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.gptq import GPTQModifier
from llmcompressor.modifiers.quantization import QuantizationModifier
from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torchao.quantization import Int8DynamicActivationInt8WeightConfig
from transformers import (
    AutoModelForCausalLM,
    CompressedTensorsConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    TorchAoConfig,
)

KEPT_IN_FLOAT = ["re:.*layers\\.0\\.mlp\\.down_proj$", "model.layers.1.self_attn.k_proj"]
WEIGHTS = {"num_bits": 8, "type": "int", "strategy": "channel"}
PER_TOKEN = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
PER_TENSOR = {"num_bits": 8, "type": "int", "strategy": "tensor", "dynamic": False}


def tiny_model() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        intermediate_size=48,
        vocab_size=64,
        tie_word_embeddings=True,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=63,
        initializer_range=0.05,
    )
    model = Qwen3ForCausalLM(config)
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            parameter.data.uniform_(0.5, 1.5)
        elif "proj" in name:
            parameter.data += 0.02  # so that asymmetric schemes have something to shift
    return model.bfloat16().eval()


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    # Never used, since calibration data are ids, but llmcompressor requires one.
    vocabulary = {str(i): i for i in range(64)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="0"))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="0")


def calibration_data() -> Dataset:
    ids = torch.randint(0, 64, (16, 32), generator=torch.Generator().manual_seed(1))
    rows = [{"input_ids": row.tolist(), "attention_mask": [1] * 32} for row in ids]
    return Dataset.from_list(rows)


def save_expected(model: Any, target: Path) -> None:
    weights = {}
    for name, module in model.named_modules():
        if "_proj" in name:
            weight = module.weight
            dense = weight.dequantize() if hasattr(weight, "qdata") else weight
            weights[f"{name}.weight"] = dense.detach().bfloat16().contiguous().clone()
    save_file(weights, str(target / "expected.safetensors"))


def by_llmcompressor(target: Path, recipe: Any, *, is_calibrated: bool = False) -> None:
    source = tempfile.mkdtemp()
    tiny_model().save_pretrained(source)
    tiny_tokenizer().save_pretrained(source)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    data: dict[str, Any] = {}
    if is_calibrated:
        data = {"dataset": calibration_data(), "max_seq_length": 32, "num_calibration_samples": 16}
    oneshot(model=model, recipe=recipe, **data)
    model.save_pretrained(target, save_compressed=True)
    loaded = AutoModelForCausalLM.from_pretrained(
        target, quantization_config=CompressedTensorsConfig(run_compressed=False)
    )
    save_expected(loaded, target)


def by_torchao(target: Path, kept: list[str] | None) -> None:
    with tempfile.TemporaryDirectory() as source:
        tiny_model().save_pretrained(source)
        config = TorchAoConfig(Int8DynamicActivationInt8WeightConfig(), modules_to_not_convert=kept)
        model = AutoModelForCausalLM.from_pretrained(
            source, quantization_config=config, dtype=torch.bfloat16
        )
        model.save_pretrained(target)
        save_expected(model, target)


def group(weights: dict[str, Any], activations: dict[str, Any]) -> dict[str, Any]:
    return {
        "group_0": {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    }


def main() -> None:
    root = Path(sys.argv[1])
    root.mkdir(parents=True, exist_ok=True)
    by_llmcompressor(
        root / "llmcompressor_w8a8",
        QuantizationModifier(targets="Linear", scheme="W8A8", ignore=["lm_head"]),
    )
    by_llmcompressor(
        root / "llmcompressor_mixed",
        [
            SmoothQuantModifier(smoothing_strength=0.5),
            GPTQModifier(targets="Linear", scheme="W8A8", ignore=["lm_head", *KEPT_IN_FLOAT]),
        ],
        is_calibrated=True,
    )
    by_llmcompressor(
        root / "llmcompressor_asymmetric",
        QuantizationModifier(
            config_groups=group({**WEIGHTS, "symmetric": False}, PER_TOKEN), ignore=["lm_head"]
        ),
    )
    by_llmcompressor(
        root / "llmcompressor_static_kv",
        QuantizationModifier(
            config_groups=group(WEIGHTS, PER_TENSOR),
            kv_cache_scheme={**PER_TENSOR, "symmetric": True},
            ignore=["lm_head"],
        ),
        is_calibrated=True,
    )
    by_torchao(root / "torchao", None)
    by_torchao(root / "torchao_mixed", ["model.layers.0.mlp.down_proj", "lm_head"])
    names = ("llmcompressor", "compressed-tensors", "torchao", "transformers", "torch")
    made_by = "\n".join(f"{name} {version(name)}" for name in names)
    (root / "MADE_BY.txt").write_text(
        f"Made by tools/checkpoint_fixtures.py with\n{made_by}\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
