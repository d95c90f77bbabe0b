"""Ops that write into paged caches."""

import pytest
import torch
import torch_npu
from torch_npu._emulation.refusals import ContractError

from tests.kernels.npu.emulated.support import BF16, int8s, random

BLOCKS, BLOCK_SIZE, HEADS, D = 4, 32, 2, 64


def caches(dtype=torch.int8):
    shape = (BLOCKS, BLOCK_SIZE, HEADS, D)
    return torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)


def slots(*values):
    return torch.tensor(values, dtype=torch.int32)


def scatter(key, value, key_cache, value_cache, slot_mapping, **more):
    arguments = {"cache_mode": "Norm"} | more
    torch_npu.npu_scatter_pa_kv_cache(key, value, key_cache, value_cache, slot_mapping, **arguments)


@pytest.mark.parametrize("dtype", [torch.int8, BF16])
def test_scatter_writes_each_token_to_its_slot_and_nothing_else(dtype):
    key_cache, value_cache = caches(dtype)
    key, value = random(3, HEADS, D).to(dtype), random(3, HEADS, D, seed=1).to(dtype)
    scatter(key, value, key_cache, value_cache, slots(5, 127, 64))
    for cache, part in ((key_cache, key), (value_cache, value)):
        rows = cache.view(BLOCKS * BLOCK_SIZE, HEADS, D).clone()
        assert torch.equal(rows[[5, 127, 64]], part)
        rows[[5, 127, 64]] = 0
        assert not rows.any()


def test_scatter_into_a_cache_with_heads_before_slots():
    """Seen as [blocks * heads, block, 1, D], a cache (blocks, heads, block, D) can be written."""
    key_cache = torch.zeros(BLOCKS, HEADS, BLOCK_SIZE, D, dtype=torch.int8)
    value_cache = key_cache.clone()
    key, value = int8s(3, HEADS, D), int8s(3, HEADS, D, seed=1)
    slot = torch.tensor([5, 127, 64])
    block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
    per_head = (block[:, None] * HEADS + torch.arange(HEADS)) * BLOCK_SIZE + offset[:, None]
    scatter(
        key.view(-1, 1, D),
        value.view(-1, 1, D),
        key_cache.view(-1, BLOCK_SIZE, 1, D),
        value_cache.view(-1, BLOCK_SIZE, 1, D),
        per_head.reshape(-1).int(),
    )
    assert torch.equal(key_cache[block, :, offset], key)
    assert torch.equal(value_cache[block, :, offset], value)


def test_scatter_nd_update_writes_rows():
    table = torch.zeros(10, 3)
    out = torch_npu.npu_scatter_nd_update_(
        table, torch.tensor([[7], [2]], dtype=torch.int32), torch.tensor([[1.0, 2, 3], [4, 5, 6]])
    )
    assert out.data_ptr() == table.data_ptr()
    assert table[7].tolist() == [1, 2, 3]
    assert table[2].tolist() == [4, 5, 6]
    assert table.sum() == 21


def test_scatter_nd_update_writes_elements():
    table = torch.zeros(4, 3)
    indices = torch.tensor([[0, 2], [3, 1]], dtype=torch.int32)
    torch_npu.npu_scatter_nd_update_(table, indices, torch.tensor([5.0, 6.0]))
    assert (table[0, 2], table[3, 1], table.sum()) == (5, 6, 11)


K, V = int8s(2, HEADS, D), int8s(2, HEADS, D, seed=1)
FORBIDDEN = {
    "the default mode": (
        lambda: scatter(K, V, *caches(), slots(0, 1), cache_mode="PA_NZ"),
        "Norm",
    ),
    "a slot of -1": (lambda: scatter(K, V, *caches(), slots(0, -1)), "slot -1"),
    "a slot past the end": (lambda: scatter(K, V, *caches(), slots(0, 128)), "slot 128"),
    "a slot twice": (lambda: scatter(K, V, *caches(), slots(3, 3)), "distinct"),
    "a missing slot": (lambda: scatter(K, V, *caches(), slots(3)), "slot_mapping"),
    "int8 into bf16": (lambda: scatter(K, V, *caches(BF16), slots(0, 1)), "key_cache"),
    "float32": (
        lambda: scatter(K.float(), V.float(), *caches(torch.float32), slots(0, 1)),
        "float32",
    ),
    "a transposed key": (
        lambda: scatter(K.transpose(0, 1), V.transpose(0, 1), *caches(), slots(0, 1)),
        "contiguous",
    ),
    "heads before slots": (
        lambda: scatter(K, V, *(c.transpose(1, 2).contiguous() for c in caches()), slots(0, 1)),
        "cache has shape",
    ),
    "a two-dim key": (lambda: scatter(K[:, 0], V[:, 0], *caches(), slots(0, 1)), "dims"),
    "one-dim indices": (
        lambda: torch_npu.npu_scatter_nd_update_(torch.zeros(4, 2), slots(1), torch.zeros(1, 2)),
        "at least 2",
    ),
    "an index past the end": (
        lambda: torch_npu.npu_scatter_nd_update_(
            torch.zeros(4, 2), slots(4)[None], torch.zeros(1, 2)
        ),
        "index 4",
    ),
    "short updates": (
        lambda: torch_npu.npu_scatter_nd_update_(
            torch.zeros(4, 2), slots(1)[None], torch.zeros(1, 1)
        ),
        "updates",
    ),
    "updates of another dtype": (
        lambda: torch_npu.npu_scatter_nd_update_(
            torch.zeros(4, 2), slots(1)[None], torch.zeros(1, 2).int()
        ),
        "updates",
    ),
}


@pytest.mark.parametrize("case", FORBIDDEN)
def test_what_a_document_forbids_is_refused(case):
    call, words = FORBIDDEN[case]
    with pytest.raises(ContractError, match=words):
        call()
