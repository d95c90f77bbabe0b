"""What a model is and how an engine runs it, as frozen dataclasses.

`ModelConfig` holds the facts of one Qwen3 dense checkpoint; `EngineConfig` the
choices of whoever runs it. Neither reads a file: `checkpoint/` builds the first
from a config.json, the CLI and `deployments/settings.py` the second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qwen3_a8w8.errors import CheckpointError, ConfigError
from qwen3_a8w8.experimental import BF16_KV_CACHE, FLAGS, unknown_flags
from qwen3_a8w8.rope_scaling import YarnScaling

DECODE_BATCH_SIZES = (1, 16)
"""Batch sizes the decode callable is compiled for."""

TOKENS_PER_ROW = 8
"""Width of `token_ids` and `sampled_ids`: column 0 is the token, 1..7 are for drafts."""

MAX_LOGPROBS = 20
"""Most alternatives per position that the sampler reports."""

SCRATCH_BLOCK = 0
"""KV block that warm-up and idle rows write to; never handed to a sequence."""


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
        max_position_embeddings: context the checkpoint was made for, in tokens.
        yarn: how its positions are stretched beyond that, or None.
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
        """Most tokens of one sequence that the checkpoint is meant for."""
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

        # transformers 5 moved rope_theta into rope_parameters; both spellings are in the wild.
        rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
        if not isinstance(rope, Mapping):
            raise CheckpointError(f"{source}: rope parameters are {rope!r}, expected an object")
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
            rope_theta=positive_float(
                "rope_theta", rope.get("rope_theta", raw.get("rope_theta", 1e6))
            ),
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


KV_CACHE_DTYPES = ("int8", "bf16")
"""Element types of the KV cache that have kernels."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How one engine runs a model.

    Attributes:
        device: "auto", "cpu", "npu" or "cuda". "auto" takes the best that can run here.
        decode_batch_sizes: batch sizes the decode callable is compiled for; a subset of (1, 16).
        block_size: tokens per KV block (16 to 256, a multiple of 16). Larger wastes more memory
            at a sequence's end, smaller makes block tables longer.
        num_kv_blocks: KV blocks including the scratch block; overrides the two below.
        kv_cache_bytes: bytes for the KV cache; used when `num_kv_blocks` is None.
        kv_memory_fraction: share (0 to 1] of the memory free after warm-up that the cache may
            take when neither of the two above is given.
        kv_cache_dtype: "int8" (with a scale cache) or "bf16", which takes nearly twice the memory
            per token; the latter is the experimental flag `bf16_kv_cache` under another name.
        max_model_len: longest prompt plus output in tokens. A number must fit the checkpoint and
            the KV cache. None: the checkpoint's own limit, or what the KV cache holds of it.
        prefill_chunk_tokens: most prompt tokens computed in one prefill dispatch.
        prefill_layers_per_dispatch: layers that a prefill dispatch goes through before others
            may decode and an abort takes effect; None: all. Each group of layers has scratch
            memory of its own.
        max_decode_stall_ms: milliseconds by which a prefill dispatch may delay sequences that
            decode (> 0); chunks are cut, by measured speed, to keep to it. Higher values give
            new prompts their first token earlier. None: no bound.
        max_running_requests: sequences that decode at the same time, at most 16.
        max_queued_requests: waiting requests beyond which new ones get a CapacityError.
        max_queued_tokens: tokens of waiting requests beyond which new ones get one; a single
            request of more is taken when none waits.
        enable_prefix_caching: reuse full KV blocks of equal prefixes.
        lookahead: plans sent before the former result is in (0 or 1).
        num_threads: CPU threads; None: the cores this process may use.
        packed_cache_dir: where packed weights are kept between runs: a directory; "auto" for
            $QWEN3_A8W8_CACHE or ~/.cache/qwen3-a8w8/packed; None for nowhere, which packs them
            anew each time.
        enable: names of experimental flags to switch on.
    """

    device: str = "auto"
    decode_batch_sizes: tuple[int, ...] = DECODE_BATCH_SIZES
    block_size: int = 32
    num_kv_blocks: int | None = None
    kv_cache_bytes: int | None = None
    kv_memory_fraction: float = 0.8
    kv_cache_dtype: str = "int8"
    max_model_len: int | None = None
    prefill_chunk_tokens: int = 512
    prefill_layers_per_dispatch: int | None = None
    max_decode_stall_ms: float | None = 1000.0
    max_running_requests: int = 16
    max_queued_requests: int = 256
    max_queued_tokens: int = 1_000_000
    enable_prefix_caching: bool = True
    lookahead: int = 1
    num_threads: int | None = None
    packed_cache_dir: str | None = "auto"
    enable: tuple[str, ...] = field(default=())

    @property
    def active_flags(self) -> tuple[str, ...]:
        """Experimental flags that are on, those that other fields mean included."""
        implied = (BF16_KV_CACHE,) if self.kv_cache_dtype == "bf16" else ()
        return tuple(dict.fromkeys((*self.enable, *implied)))

    @property
    def has_bf16_kv_cache(self) -> bool:
        """Whether keys and values are kept in bfloat16."""
        return BF16_KV_CACHE in self.active_flags

    def __post_init__(self) -> None:
        """Checks ranges.

        Raises:
            ConfigError: a value is outside its range; the message names field, value and range.
        """

        def check(is_good: bool, name: str, expected: str) -> None:
            if not is_good:
                raise ConfigError(f"{name} is {getattr(self, name)!r}, expected {expected}")

        def is_count(value: object, low: int, high: int | None = None) -> bool:
            return (
                isinstance(value, int)
                and not isinstance(value, bool)
                and value >= low
                and (high is None or value <= high)
            )

        check(
            self.device in ("auto", "cpu", "npu", "cuda"), "device", "one of auto, cpu, npu, cuda"
        )
        sizes = self.decode_batch_sizes
        check(
            len(sizes) > 0 and set(sizes) <= set(DECODE_BATCH_SIZES) and 1 in sizes,
            "decode_batch_sizes",
            f"a subset of {DECODE_BATCH_SIZES} that contains 1",
        )
        check(
            is_count(self.block_size, 16, 256) and self.block_size % 16 == 0,
            "block_size",
            "a multiple of 16 from 16 to 256",
        )
        check(
            self.num_kv_blocks is None or is_count(self.num_kv_blocks, 2),
            "num_kv_blocks",
            "an integer of at least 2 (block 0 is the scratch block), or None",
        )
        check(
            self.kv_cache_bytes is None or is_count(self.kv_cache_bytes, 1),
            "kv_cache_bytes",
            "a positive number of bytes, or None",
        )
        check(0 < self.kv_memory_fraction <= 1, "kv_memory_fraction", "a share in (0, 1]")
        check(
            self.kv_cache_dtype in KV_CACHE_DTYPES,
            "kv_cache_dtype",
            f"one of {', '.join(KV_CACHE_DTYPES)}",
        )
        check(
            self.max_model_len is None or is_count(self.max_model_len, 2),
            "max_model_len",
            "an integer of at least 2, or None",
        )
        check(
            is_count(self.prefill_chunk_tokens, 16, 8192),
            "prefill_chunk_tokens",
            "an integer from 16 to 8192",
        )
        check(
            self.prefill_layers_per_dispatch is None
            or is_count(self.prefill_layers_per_dispatch, 1),
            "prefill_layers_per_dispatch",
            "an integer of at least 1, or None",
        )
        stall_ms: object = self.max_decode_stall_ms
        check(
            stall_ms is None
            or (
                isinstance(stall_ms, int | float)
                and not isinstance(stall_ms, bool)
                and math.isfinite(stall_ms)
                and stall_ms > 0
            ),
            "max_decode_stall_ms",
            "a positive number of milliseconds, or None",
        )
        check(
            is_count(self.max_running_requests, 1, max(DECODE_BATCH_SIZES)),
            "max_running_requests",
            f"an integer from 1 to {max(DECODE_BATCH_SIZES)}",
        )
        check(
            is_count(self.max_queued_requests, 0),
            "max_queued_requests",
            "an integer of at least 0",
        )
        check(is_count(self.max_queued_tokens, 0), "max_queued_tokens", "an integer of at least 0")
        check(self.lookahead in (0, 1), "lookahead", "0 or 1")
        check(
            not unknown_flags(self.enable),
            "enable",
            f"names of experimental flags: {', '.join(sorted(FLAGS))}",
        )
        check(
            self.packed_cache_dir is None
            or (isinstance(self.packed_cache_dir, str) and self.packed_cache_dir != ""),
            "packed_cache_dir",
            'a directory, "auto", or None',
        )
        check(
            self.num_threads is None or is_count(self.num_threads, 1, 1024),
            "num_threads",
            "an integer from 1 to 1024, or None",
        )
