"""Kernels that write into paged caches."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_npu._emulation import formats
from torch_npu._emulation.definitions import kernel, meta
from torch_npu._emulation.refusals import OpContract


@kernel("npu_scatter_pa_kv_cache")
def npu_scatter_pa_kv_cache(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    compress_lens: Tensor | None = None,
    compress_seq_offsets: Tensor | None = None,
    seq_lens: Tensor | None = None,
    cache_mode: str | None = "PA_NZ",
) -> None:
    """Writes tokens to slots of an ND cache.

    Sources: document "torch_npu.npu_scatter_pa_kv_cache"; "aclnnScatterPaKvCache" for the
    layout of mode Norm: key [tokens, heads, size], cache [blocks, block_size, heads, size],
    and for the dtypes of Atlas A2/A3.
    """
    check = OpContract("npu_scatter_pa_kv_cache")
    check.require(
        cache_mode in (None, "Norm"),
        f"cache_mode {cache_mode!r} is for a FRACTAL_NZ cache; pass cache_mode='Norm'",
    )
    for name, given in (
        ("compress_lens", compress_lens),
        ("compress_seq_offsets", compress_seq_offsets),
        ("seq_lens", seq_lens),
    ):
        check.require(given is None, f"{name} is for compressed caches")
    check.dtype("key", key, (torch.int8, torch.float16, torch.bfloat16))
    tensors = {"key": key, "value": value, "key_cache": key_cache, "value_cache": value_cache}
    for name, tensor in tensors.items():
        check.dtype(name, tensor, (key.dtype,))
        wanted = 3 if name in ("key", "value") else 4
        check.require(tensor.dim() == wanted, f"{name} has {tensor.dim()} dims, not {wanted}")
    check.contiguous(slot_mapping=slot_mapping, **tensors)
    check.plain(**tensors)
    check.require(key.shape[:2] == value.shape[:2], "key and value differ in tokens or heads")
    num_tokens, num_heads = key.shape[:2]
    num_blocks, block_size = key_cache.shape[:2]
    for part, cache in ((key, key_cache), (value, value_cache)):
        check.shape("cache", cache, (num_blocks, block_size, num_heads, part.shape[2]))
    check.dtype("slot_mapping", slot_mapping, (torch.int32, torch.int64))
    check.shape("slot_mapping", slot_mapping, (num_tokens,))
    slots = slot_mapping.tolist()
    limit = num_blocks * block_size
    for slot in slots:
        check.require(0 <= slot < limit, f"slot {slot} is outside of [0, {limit})")
    check.require(len(set(slots)) == len(slots), f"slots are not distinct: {slots}")
    for part, cache in ((key, key_cache), (value, value_cache)):
        for token, slot in enumerate(slots):
            cache[slot // block_size, slot % block_size] = part[token]


@kernel("npu_scatter_nd_update_")
def npu_scatter_nd_update_(self: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """Source: document "torch_npu.npu_scatter_nd_update_"."""
    check = OpContract("npu_scatter_nd_update_")
    supported = (torch.float32, *(torch.float16, torch.bfloat16, torch.int64, torch.int8))
    check.dtype("input", self, (*supported, torch.bool))
    check.dtype("updates", updates, (self.dtype,))
    check.dtype("indices", indices, (torch.int32, torch.int64))
    check.plain(input=self, updates=updates)
    check.require(1 <= self.dim() <= 8, f"input has {self.dim()} dims")
    check.require(indices.dim() >= 2, f"indices have {indices.dim()} dim, at least 2 are needed")
    depth = indices.shape[-1]
    check.require(depth <= self.dim(), f"indices address {depth} of {self.dim()} dims")
    check.shape("updates", updates, (*indices.shape[:-1], *self.shape[depth:]))
    rows = indices.reshape(-1, depth).tolist()
    for row in rows:
        for axis, index in enumerate(row):
            check.require(
                0 <= index < self.shape[axis], f"index {index} exceeds dim {axis} of {self.shape}"
            )
    check.require(len({tuple(row) for row in rows}) == len(rows), "indices are not distinct")
    for row, update in zip(rows, updates.reshape(len(rows), *self.shape[depth:]), strict=True):
        self[tuple(row)] = update
    return self


@kernel("npu_gather_pa_kv_cache")
def npu_gather_pa_kv_cache(
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    seq_offset: Tensor | None = None,
    is_seq_lens_cumsum: bool = False,
) -> None:
    """Copies the tokens of sequences out of an ND cache, one sequence after the other.

    Source: "aclnnGatherPaKvCache": caches [blocks, block_size, heads, size], key [tokens, heads,
    size].
    """
    check = OpContract("npu_gather_pa_kv_cache")
    check.require(seq_offset is None and not is_seq_lens_cumsum, "offsets aren't emulated")
    check.require(formats.format_of(key_cache) == formats.ND, "a FRACTAL_NZ cache isn't emulated")
    check.dtype("block_tables", block_tables, (torch.int32,))
    check.dtype("seq_lens", seq_lens, (torch.int32,))
    block_size, start = key_cache.shape[1], 0
    for table, length in zip(block_tables.tolist(), seq_lens.tolist(), strict=True):
        for position in range(length):
            block, offset = table[position // block_size], position % block_size
            key[start + position] = key_cache[block, offset]
            value[start + position] = value_cache[block, offset]
        start += length


@meta("npu_gather_pa_kv_cache")
def _npu_gather_pa_kv_cache_meta(*args: object, **_: object) -> None:
    return None
