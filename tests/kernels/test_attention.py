import math

import pytest
import torch

from qwen3_a8w8.kernels.ops import KvCache
from tests.kernels.paged_cache import (
    CACHE_NAMES,
    random_bf16_cache,
    random_cache,
    scattered_tables,
)
from tests.kernels.single_op import SENTINEL, assert_close, reference, run_ops

# Around the vector widths, the tiles of 64 and the chunks of 256.
LENGTHS = [1, 2, 15, 16, 17, 63, 64, 65, 255, 256, 257, 300, 511, 512, 513, 700]
BLOCK_SIZE = 16
TABLE_WIDTH = 44
CACHES = {"int8": random_cache, "bf16": random_bf16_cache}


@pytest.fixture(params=CACHES)
def make_cache(request):
    return CACHES[request.param]


def _attend(backend, q, cache, tables, lengths, seq_index=None, num_active=None, layer=1):
    def fn(ops, refs):
        kv = KvCache(*(refs[name] for name in CACHE_NAMES))
        head_dim = cache["k"].shape[-1]
        return (
            ops.attention(
                refs["q"],
                kv,
                refs["tables"],
                refs["lengths"],
                refs.get("seq_index"),
                layer=layer,
                scale=1 / math.sqrt(head_dim),
            ),
        )

    per_row = {"q": q, "lengths": torch.tensor(lengths, dtype=torch.int32)}
    others = dict(cache)
    if seq_index is None:
        per_row["tables"] = tables
    else:
        per_row["seq_index"] = torch.tensor(seq_index, dtype=torch.int32)
        others["tables"] = tables
    return run_ops(backend, fn, per_row, others, num_active=num_active)[0]


def _setup(make_cache, num_heads, kv_heads, head_dim, num_seqs=16, seed=0):
    num_blocks = num_seqs * TABLE_WIDTH + 1
    cache = make_cache(2, num_blocks, kv_heads, BLOCK_SIZE, head_dim, seed)
    tables = scattered_tables(num_seqs, TABLE_WIDTH, num_blocks, seed)
    gen = torch.Generator().manual_seed(seed)
    q = torch.randn(num_seqs, num_heads * head_dim, generator=gen)
    return q, cache, tables


@pytest.mark.parametrize(
    ("num_heads", "kv_heads", "head_dim"), [(4, 2, 128), (5, 1, 128), (8, 8, 64), (7, 1, 24)]
)
def test_attention_decode_matches_reference(backend, make_cache, num_heads, kv_heads, head_dim):
    q, cache, tables = _setup(make_cache, num_heads, kv_heads, head_dim)
    got = _attend(backend, q, cache, tables, LENGTHS)
    want = _attend(reference(), q, cache, tables, LENGTHS)
    assert_close(got, want, 1e-5)


@pytest.mark.parametrize("block_size", [1, 8, 48, 256])
def test_attention_any_block_size_matches_reference(backend, make_cache, block_size):
    cache = make_cache(1, 2 * -(-300 // block_size) + 1, 2, block_size, 32)
    tables = scattered_tables(2, -(-300 // block_size), cache["k"].shape[1])
    q = torch.randn(2, 4 * 32, generator=torch.Generator().manual_seed(3))
    got = _attend(backend, q, cache, tables, [300, 131], layer=0)
    want = _attend(reference(), q, cache, tables, [300, 131], layer=0)
    assert_close(got, want, 1e-5)


def test_attention_row_alone_equals_row_in_batch_with_any_threads(by_threads, make_cache):
    q, cache, tables = _setup(make_cache, 4, 2, 128)
    results = [_attend(backend, q, cache, tables, LENGTHS) for backend in by_threads]
    assert all(torch.equal(result, results[0]) for result in results)
    for row, length in enumerate(LENGTHS):
        alone = _attend(by_threads[0], q[row : row + 1], cache, tables[row : row + 1], [length])
        assert torch.equal(alone[0], results[0][row])


@pytest.mark.parametrize(
    ("num_heads", "kv_heads", "head_dim"), [(4, 2, 128), (40, 8, 128), (3, 1, 24)]
)
def test_attention_prefill_equals_decode_bit_for_bit(
    backend, make_cache, num_heads, kv_heads, head_dim
):
    # Two sequences packed; the first is a chunk that begins at 230 and crosses 256.
    starts, counts = [230, 0], [45, 20]
    _, cache, tables = _setup(make_cache, num_heads, kv_heads, head_dim, num_seqs=2)
    lengths = [start + i + 1 for start, n in zip(starts, counts, strict=True) for i in range(n)]
    seq_index = [0] * counts[0] + [1] * counts[1]
    gen = torch.Generator().manual_seed(5)
    q = torch.randn(len(lengths), num_heads * head_dim, generator=gen)
    prefill = _attend(backend, q, cache, tables, lengths, seq_index)
    decode = _attend(backend, q, cache, tables[seq_index].contiguous(), lengths)
    assert torch.equal(prefill, decode)
    split = [
        _attend(backend, q[a:b].contiguous(), cache, tables, lengths[a:b], seq_index[a:b])
        for a, b in ((0, 1), (1, 26), (26, 65))
    ]
    assert torch.equal(prefill, torch.cat(split))
    assert_close(prefill, _attend(reference(), q, cache, tables, lengths, seq_index), 1e-5)


def test_attention_idle_rows_are_left_alone(backend, make_cache):
    q, cache, tables = _setup(make_cache, 4, 2, 128)
    lengths = [40, 300, *[0] * 14]
    # Idle rows may point anywhere: nothing of theirs is read.
    tables[2:] = 2**30
    got = _attend(backend, q, cache, tables, lengths, num_active=2)
    assert torch.equal(got[2:], torch.full_like(got[2:], float(SENTINEL)))
    want = _attend(reference(), q[:2], cache, tables[:2], lengths[:2])
    assert_close(got[:2], want, 1e-5)


def test_attention_garbage_after_the_context_is_ignored(backend, make_cache):
    q, cache, tables = _setup(make_cache, 4, 2, 128, num_seqs=1)
    clean = _attend(backend, q, cache, tables, [37])
    block = int(tables[0, 2])  # positions 32 to 47
    for tensor in cache.values():
        if tensor.is_floating_point():
            tensor[:, block, :, 5:] = float("nan")
    tables[0, 3:] = 2**30
    assert torch.equal(_attend(backend, q, cache, tables, [37]), clean)


def test_attention_large_scores_stay_finite(backend, make_cache):
    q, cache, tables = _setup(make_cache, 4, 2, 128, num_seqs=1)
    q = q * 1e4
    got = _attend(backend, q, cache, tables, [513])
    assert torch.isfinite(got).all()
    assert_close(got, _attend(reference(), q, cache, tables, [513]), 1e-4)


@pytest.mark.parametrize("ratio", [1e2, 1e4, 1e8])
def test_attention_value_scale_without_weight_costs_no_precision(backend, ratio):
    # One position's values are larger than all others', and the softmax gives it nothing.
    gen = torch.Generator().manual_seed(5)
    cache = random_cache(1, 17, 1, 16, 64)
    q = torch.randn(1, 64, generator=gen)
    tables = torch.arange(1, 17, dtype=torch.int32).view(1, 16)
    cache["k"][0, 3, 0, 7] = (-127 * q[0].sign()).to(torch.int8)
    cache["k_scale"][0, 3, 0, 7] = 10.0
    cache["v_scale"] /= ratio
    cache["v_scale"][0, 3, 0, 7] = 0.01
    got = _attend(backend, q, cache, tables, [256], layer=0)
    want = _attend(reference(), q, cache, tables, [256], layer=0)
    assert_close(got, want, 1e-5)
