"""`EngineConfig`: the options of an engine, with their ranges."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from qwen3_a8w8.config.constants import DECODE_BATCH_SIZES
from qwen3_a8w8.errors import ConfigError
from qwen3_a8w8.experimental import BF16_KV_CACHE, FLAGS, unknown_flags

KV_CACHE_DTYPES = ("int8", "bf16")
"""Element types of the KV cache that have kernels."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How one engine runs a model.

    Attributes:
        device: "auto", "cpu", "npu" or "cuda". "auto" takes the best device that can run here.
        decode_batch_sizes: batch sizes the decode callable is compiled for; a subset of (1, 16).
        block_size: tokens per KV block (16 to 256, a multiple of 16). Larger wastes more memory
            at a sequence's end, smaller makes block tables longer.
        num_kv_blocks: KV blocks including the scratch block; overrides the two below.
        kv_cache_bytes: bytes for the KV cache; used when `num_kv_blocks` is None.
        kv_memory_fraction: share (0 to 1] of the memory free after warm-up that the cache may
            take if neither of the two above is given.
        kv_cache_dtype: "int8" (with a scale cache) or "bf16", which takes nearly twice the memory
            per token; the same as the experimental flag `bf16_kv_cache`.
        max_model_len: longest prompt plus output in tokens. A number must fit the checkpoint and
            the KV cache. None: the checkpoint's own limit, or what fits the KV cache if less.
        prefill_chunk_tokens: most prompt tokens that one prefill dispatch computes.
        prefill_layers_per_dispatch: layers that a prefill dispatch computes before others
            may decode and an abort takes effect; None: all. Each group of layers has scratch
            memory of its own.
        max_decode_stall_ms: milliseconds by which a prefill dispatch may delay sequences that
            decode (> 0); chunks are shortened, by measured speed, to stay within it. Higher
            values give new prompts their first token earlier. None: no bound.
        max_running_requests: sequences that decode at the same time, at most 16.
        max_queued_requests: waiting requests beyond which new ones get a CapacityError.
        max_queued_tokens: tokens of waiting requests beyond which new ones get a CapacityError;
            a single larger request is accepted if none waits.
        enable_prefix_caching: reuse full KV blocks of equal prefixes.
        lookahead: plans sent before the previous result has arrived (0 or 1).
        num_threads: CPU threads; None: the cores this process may use.
        isa: instruction path of the CPU kernels by name, e.g. "avx2"; None: the fastest that this
            machine can run. `doctor` lists them.
        packed_cache_dir: where packed weights are stored between runs: a directory; "auto" for
            $QWEN3_A8W8_CACHE or ~/.cache/qwen3-a8w8/packed; None: not stored, every start packs
            them again.
        use_mmap: map packed weights, so that the processes of a host share one copy and a start
            takes seconds. False: every process reads a copy into its own memory, which the
            kernel can back with huge pages where it can't do so for files.
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
    isa: str | None = None
    packed_cache_dir: str | None = "auto"
    use_mmap: bool = True
    enable: tuple[str, ...] = field(default=())

    @property
    def active_flags(self) -> tuple[str, ...]:
        """Enabled experimental flags, including those that other fields imply."""
        implied = (BF16_KV_CACHE,) if self.kv_cache_dtype == "bf16" else ()
        return tuple(dict.fromkeys((*self.enable, *implied)))

    @property
    def has_bf16_kv_cache(self) -> bool:
        """Whether keys and values are stored in bfloat16."""
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
        check(isinstance(self.use_mmap, bool), "use_mmap", "true or false")
        check(
            self.isa is None or (isinstance(self.isa, str) and self.isa != ""),
            "isa",
            "the name of an instruction path, or None",
        )
        check(
            self.num_threads is None or is_count(self.num_threads, 1, 1024),
            "num_threads",
            "an integer from 1 to 1024, or None",
        )
