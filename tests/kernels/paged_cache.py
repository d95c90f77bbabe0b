"""A paged cache with random contents and sequences scattered over its blocks."""

import torch

CACHE_NAMES = ("k", "v", "k_scale", "v_scale")


def random_cache(num_layers, num_blocks, kv_heads, block_size, head_dim, seed=0):
    gen = torch.Generator().manual_seed(seed)
    shape = (num_layers, num_blocks, kv_heads, block_size, head_dim)
    cache = {
        name: torch.randint(-127, 128, shape, generator=gen, dtype=torch.int8) for name in "kv"
    }
    for name in ("k_scale", "v_scale"):
        cache[name] = torch.rand(shape[:-1], generator=gen) * 0.02 + 0.001
    return cache


def random_bf16_cache(num_layers, num_blocks, kv_heads, block_size, head_dim, seed=0):
    """The same without quantisation: bfloat16, and scales that hold nothing."""
    gen = torch.Generator().manual_seed(seed)
    shape = (num_layers, num_blocks, kv_heads, block_size, head_dim)
    cache = {name: torch.randn(shape, generator=gen).bfloat16() for name in "kv"}
    return cache | {name: torch.zeros(*shape[:3], 0) for name in ("k_scale", "v_scale")}


def scattered_tables(num_seqs, blocks_per_seq, num_blocks, seed=0):
    """[num_seqs, blocks_per_seq] int32 of distinct blocks, none of them block 0."""
    gen = torch.Generator().manual_seed(seed)
    blocks = torch.randperm(num_blocks - 1, generator=gen)[: num_seqs * blocks_per_seq] + 1
    return blocks.view(num_seqs, blocks_per_seq).int().contiguous()
