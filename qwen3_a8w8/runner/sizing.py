"""Number of KV blocks, and free memory."""

from __future__ import annotations

import logging
from pathlib import Path

from qwen3_a8w8.config import EngineConfig, ModelConfig
from qwen3_a8w8.errors import ConfigError

logger = logging.getLogger(__name__)

_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


def kv_block_bytes(model: ModelConfig, block_size: int, *, is_bf16: bool = False) -> int:
    """Bytes of one KV block over all layers: int8 K and V with a float32 scale each, or bf16.

    Args:
        model: the architecture.
        block_size: tokens per block.
        is_bf16: elements are bfloat16 without scales.
    """
    per_head = 2 * (2 * model.head_dim if is_bf16 else model.head_dim + 4)
    return model.num_layers * model.num_kv_heads * block_size * per_head


def free_host_memory_bytes() -> int:
    """Memory that this process can still allocate, in bytes.

    The kernel's MemAvailable, or what a cgroup (v2) leaves, whichever is less.

    Raises:
        ConfigError: the kernel doesn't report it.
    """
    try:
        lines = _MEMINFO.read_text().splitlines()
        available = next(int(s.split()[1]) * 1024 for s in lines if s.startswith("MemAvailable:"))
    except (OSError, StopIteration) as error:
        raise ConfigError(
            f"can't read MemAvailable from {_MEMINFO}; set kv_cache_bytes or num_kv_blocks"
        ) from error
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
        stat = dict(s.split() for s in (_CGROUP / "memory.stat").read_text().splitlines())
    except OSError:
        return available
    if limit == "max":
        return available
    # Page cache counts as used but is reclaimed under pressure.
    return max(0, min(available, int(limit) - used + int(stat.get("inactive_file", 0))))


def num_kv_blocks(
    engine: EngineConfig, model: ModelConfig, max_model_len: int, free_bytes: int
) -> int:
    """Number of KV blocks, the scratch block included.

    Taken from `num_kv_blocks`, else `kv_cache_bytes`, else `kv_memory_fraction` of what is
    free; the last never exceeds twice what `max_running_requests` sequences of full length
    can use (the second half serves the prefix cache).

    Args:
        engine: the engine's options.
        model: the architecture.
        max_model_len: longest sequence in tokens.
        free_bytes: device memory that is free now.

    Raises:
        ConfigError: not even one block besides the scratch block fits.
    """
    block_bytes = kv_block_bytes(model, engine.block_size, is_bf16=engine.has_bf16_kv_cache)
    if engine.num_kv_blocks is not None:
        wanted, source = engine.num_kv_blocks, "num_kv_blocks"
    elif engine.kv_cache_bytes is not None:
        wanted, source = engine.kv_cache_bytes // block_bytes, "kv_cache_bytes"
    else:
        share = int(free_bytes * engine.kv_memory_fraction) // block_bytes
        blocks_per_seq = -(-max_model_len // engine.block_size)
        wanted = min(share, 2 * engine.max_running_requests * blocks_per_seq + 1)
        source = "kv_memory_fraction"
    if wanted < 2:
        raise ConfigError(
            f"{source} leaves room for {wanted} KV blocks of {block_bytes} bytes, at least 2 are "
            "needed (block 0 is the scratch block); raise it, or lower block_size"
        )
    if wanted * block_bytes > free_bytes:
        raise ConfigError(
            f"{source} requires {wanted} KV blocks of {block_bytes} bytes, "
            f"{wanted * block_bytes} in all, but {free_bytes} are free; lower it"
        )
    return wanted


def max_model_len(model: ModelConfig, engine: EngineConfig) -> int:
    """Most tokens of one sequence, limited by the checkpoint.

    Raises:
        ConfigError: `engine.max_model_len` exceeds the checkpoint's context.
    """
    limit = model.context_length
    if engine.max_model_len is None:
        return limit
    if engine.max_model_len > limit:
        raise ConfigError(
            f"max_model_len is {engine.max_model_len}, but the checkpoint supports "
            f"{limit} positions; lower it"
        )
    return engine.max_model_len


def check_sequence_fits(engine: EngineConfig, max_model_len: int, num_blocks: int) -> None:
    """Checks that a sequence of full length fits the KV cache.

    A configured length must fit. The checkpoint's own context is only an upper limit: if the
    cache is smaller, that is logged, and requests are admitted up to the cache's size.

    Args:
        engine: the engine's options.
        max_model_len: longest sequence in tokens.
        num_blocks: KV blocks, the scratch block included.

    Raises:
        ConfigError: `engine.max_model_len` is set and doesn't fit the cache.
    """
    num_tokens = (num_blocks - 1) * engine.block_size
    if num_tokens >= max_model_len:
        return
    fact = (
        f"the KV cache has {num_blocks - 1} blocks of {engine.block_size} tokens besides the "
        f"scratch block, so it holds {num_tokens} tokens"
    )
    if engine.max_model_len is not None:
        raise ConfigError(
            f"max_model_len is {max_model_len}, but {fact}; raise num_kv_blocks, kv_cache_bytes "
            "or kv_memory_fraction, or lower max_model_len"
        )
    logger.warning(
        "%s; sequences are limited to that, not to the %d of the checkpoint", fact, max_model_len
    )
