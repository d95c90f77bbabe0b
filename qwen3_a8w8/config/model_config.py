"""`ModelConfig`: the architecture of one Qwen3 dense checkpoint, read from a config.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qwen3_a8w8.errors import CheckpointError
from qwen3_a8w8.rope_scaling import YarnScaling, rope_parameters


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Architecture of a Qwen3 dense model.

    Attributes:
        hidden_size: width of the residual stream.
        num_layers: number of decoder layers.
        num_heads: query heads.
        num_kv_heads: key/value heads; divides `num_heads`.
        head_dim: width of one head, 128 in every published size.
        intermediate_size: width of the gated MLP.
        vocab_size: rows of the embedding.
        rope_theta: base of the rotary embedding.
        rms_norm_eps: epsilon of every RMSNorm.
        max_position_embeddings: context the checkpoint was trained for, in tokens.
        yarn: how positions are scaled beyond that, or None.
        tie_word_embeddings: lm_head shares the embedding matrix.
        eos_token_ids: ids that end a generation unless `ignore_eos`.
    """

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    rope_theta: float = 1e6
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 40960
    tie_word_embeddings: bool = False
    eos_token_ids: tuple[int, ...] = ()
    yarn: YarnScaling | None = None

    @property
    def context_length(self) -> int:
        """Most tokens of one sequence that the checkpoint supports."""
        if self.yarn is None:
            return self.max_position_embeddings
        return max(self.max_position_embeddings, self.yarn.context_length)

    @property
    def q_size(self) -> int:
        """Columns of the query projection."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Columns of the key (or value) projection."""
        return self.num_kv_heads * self.head_dim

    @property
    def qkv_size(self) -> int:
        """Columns of the fused query/key/value projection."""
        return self.q_size + 2 * self.kv_size

    def static_dims(self) -> dict[str, int]:
        """Static extents by the names that the callables' signatures use."""
        return {
            "HIDDEN": self.hidden_size,
            "NUM_LAYERS": self.num_layers,
            "NUM_HEADS": self.num_heads,
            "KV_HEADS": self.num_kv_heads,
            "HEAD_DIM": self.head_dim,
            "INTERMEDIATE": self.intermediate_size,
            "VOCAB": self.vocab_size,
        }

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any], source: str = "config.json") -> ModelConfig:
        """Builds the config from the fields of a Hugging Face `config.json`.

        Args:
            raw: the parsed file.
            source: where it came from, for messages.

        Raises:
            CheckpointError: not a Qwen3 dense model, or a field is missing or out of range.
        """
        architectures = raw.get("architectures") or []
        if raw.get("model_type") != "qwen3" or "Qwen3ForCausalLM" not in architectures:
            raise CheckpointError(
                f"{source}: model_type {raw.get('model_type')!r} with architectures "
                f"{architectures!r} is not a Qwen3 dense model; expected model_type 'qwen3' "
                "and 'Qwen3ForCausalLM'. Mixture-of-experts and other families aren't supported."
            )

        def positive_int(name: str, default: int | None = None) -> int:
            value = raw.get(name, default)
            if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
                raise CheckpointError(
                    f"{source}: field {name!r} is {value!r}, expected a positive integer"
                )
            return value

        def positive_float(name: str, value: Any) -> float:
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or not math.isfinite(value)
                or value <= 0
            ):
                raise CheckpointError(
                    f"{source}: field {name!r} is {value!r}, expected a positive number"
                )
            return float(value)

        rope = rope_parameters(raw, source)
        max_position_embeddings = positive_int("max_position_embeddings", 40960)
        yarn = YarnScaling.from_hf(rope, max_position_embeddings, source)
        if raw.get("attention_bias"):
            raise CheckpointError(f"{source}: attention_bias is true; Qwen3 has no biases")
        if raw.get("use_sliding_window"):
            raise CheckpointError(f"{source}: use_sliding_window is true; it isn't supported")
        if raw.get("hidden_act", "silu") != "silu":
            raise CheckpointError(f"{source}: hidden_act {raw['hidden_act']!r}, expected 'silu'")

        eos = raw.get("eos_token_id")
        eos_ids = tuple(eos) if isinstance(eos, list) else (() if eos is None else (eos,))
        config = cls(
            hidden_size=positive_int("hidden_size"),
            num_layers=positive_int("num_hidden_layers"),
            num_heads=positive_int("num_attention_heads"),
            num_kv_heads=positive_int("num_key_value_heads"),
            head_dim=positive_int("head_dim", 128),
            intermediate_size=positive_int("intermediate_size"),
            vocab_size=positive_int("vocab_size"),
            rope_theta=positive_float("rope_theta", rope["rope_theta"]),
            rms_norm_eps=positive_float("rms_norm_eps", raw.get("rms_norm_eps", 1e-6)),
            max_position_embeddings=max_position_embeddings,
            tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
            eos_token_ids=eos_ids,
            yarn=yarn,
        )
        if config.num_heads % config.num_kv_heads:
            raise CheckpointError(
                f"{source}: num_attention_heads {config.num_heads} is not a multiple of "
                f"num_key_value_heads {config.num_kv_heads}"
            )
        if config.head_dim % 2:
            raise CheckpointError(
                f"{source}: head_dim {config.head_dim} is odd; rotary embedding needs pairs"
            )
        return config
