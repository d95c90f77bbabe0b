"""Reference counts, prefix lookup and eviction of the KV block pool."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwen3_a8w8.errors import ConfigError
from qwen3_a8w8.kv_cache.block_pool import BlockPool
from qwen3_a8w8.kv_cache.prefix_index import extend_block_keys


def keys_of(token_ids, block_size=4):
    keys = []
    extend_block_keys(keys, token_ids, block_size)
    return keys


def publish_all(pool, block_ids, keys):
    for block_id, key in zip(block_ids, keys, strict=True):
        pool.publish(block_id, key)


def test_allocate_whole_pool_never_gives_scratch_block():
    pool = BlockPool(5, 4)
    assert pool.allocate(4) == [1, 2, 3, 4]
    assert (pool.num_free, pool.num_in_use) == (0, 4)


def test_allocate_more_than_free_raises_and_takes_nothing():
    pool = BlockPool(5, 4)
    pool.allocate(2)
    with pytest.raises(RuntimeError, match="3 KV blocks requested, 2 of 4 are free"):
        pool.allocate(3)
    assert pool.num_free == 2


def test_pool_with_scratch_block_alone_is_refused():
    with pytest.raises(ConfigError, match="num_kv_blocks is 1"):
        BlockPool(1, 4)


def test_release_twice_raises():
    pool = BlockPool(5, 4)
    blocks = pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(RuntimeError, match="block 1 is released but has no reference"):
        pool.release(blocks)


def test_publish_free_block_raises():
    pool = BlockPool(5, 4)
    with pytest.raises(RuntimeError, match="has no reference"):
        pool.publish(1, keys_of(range(4))[0])


@pytest.mark.parametrize(("num_tokens", "num_blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2)])
def test_blocks_for_rounds_up(num_tokens, num_blocks):
    assert BlockPool(5, 4).blocks_for(num_tokens) == num_blocks


def test_block_keys_cover_full_blocks_and_extend_consistently():
    keys = keys_of(range(7))
    assert len(keys) == 1
    extend_block_keys(keys, list(range(12)), 4)
    assert keys == keys_of(range(12))
    assert len(keys) == 3


def test_block_keys_depend_on_every_earlier_token():
    first = keys_of([1, 2, 3, 4, 5, 6, 7, 8])
    other = keys_of([9, 2, 3, 4, 5, 6, 7, 8])
    assert first[1] != other[1]


def test_block_keys_do_not_confuse_token_boundaries():
    assert keys_of([1, 256, 0, 0]) != keys_of([257, 0, 0, 0])


def test_prefix_published_and_released_is_found_again():
    pool = BlockPool(9, 4)
    keys = keys_of(range(12))
    blocks = pool.allocate(3)
    publish_all(pool, blocks, keys)
    pool.release(blocks)
    assert (pool.num_in_use, pool.num_free) == (0, 8)
    assert pool.num_known_blocks(keys) == 3
    assert pool.acquire_prefix(keys) == blocks
    assert pool.num_in_use == 3


def test_prefix_is_shared_while_held():
    pool = BlockPool(9, 4)
    keys = keys_of(range(8))
    blocks = pool.allocate(2)
    publish_all(pool, blocks, keys)
    assert pool.acquire_prefix(keys) == blocks
    assert [pool.ref_count(b) for b in blocks] == [2, 2]
    pool.release(blocks)
    assert pool.num_in_use == 2
    pool.release(blocks)
    assert pool.num_in_use == 0


def test_prefix_stops_at_first_unknown_block():
    pool = BlockPool(9, 4)
    keys = keys_of(range(12))
    blocks = pool.allocate(3)
    publish_all(pool, [blocks[0], blocks[2]], [keys[0], keys[2]])
    assert pool.acquire_prefix(keys) == [blocks[0]]


def test_same_content_twice_keeps_first_block():
    pool = BlockPool(9, 4)
    keys = keys_of(range(4))
    first, second = pool.allocate(2)
    pool.publish(first, keys[0])
    pool.publish(second, keys[0])
    pool.release([first, second])
    assert pool.acquire_prefix(keys) == [first]


def test_eviction_takes_least_recently_used_tail_first():
    pool = BlockPool(5, 4)
    old, new = keys_of(range(8)), keys_of(range(50, 58))
    for keys in (old, new):
        blocks = pool.allocate(2)
        publish_all(pool, blocks, keys)
        pool.release(blocks)
    pool.release(pool.acquire_prefix(old))  # now `new` has been unused for longest
    assert pool.allocate(1) == [4]  # its second block: without it the first is still of use
    assert pool.num_known_blocks(new) == 1
    assert pool.num_known_blocks(old) == 2


def test_pool_without_prefix_caching_finds_what_is_held_and_nothing_else():
    pool = BlockPool(5, 4, enable_prefix_caching=False)
    keys = keys_of(range(8))
    blocks = pool.allocate(2)
    publish_all(pool, blocks, keys)
    assert pool.acquire_prefix(keys) == blocks
    pool.release(blocks)
    assert pool.acquire_prefix(keys[:1]) == blocks[:1]
    pool.release(blocks)
    assert pool.num_known_blocks(keys) == 1
    pool.release(blocks[:1])
    assert pool.num_known_blocks(keys) == 0
    assert pool.acquire_prefix(keys) == []
    assert pool.allocate(4) == [3, 4, 2, 1]


@settings(max_examples=60, deadline=None)
@given(
    num_blocks=st.integers(2, 12),
    steps=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), max_size=60),
    is_cached=st.booleans(),
)
def test_pool_conserves_blocks_under_any_use(num_blocks, steps, is_cached):
    pool = BlockPool(num_blocks, 2, enable_prefix_caching=is_cached)
    held = []  # (block ids, keys)
    for prompt, length in steps:
        tokens = [prompt] * (2 * length)
        keys = keys_of(tokens, 2)
        blocks = pool.acquire_prefix(keys)
        if length - len(blocks) <= pool.num_free:
            blocks = blocks + pool.allocate(length - len(blocks))
            publish_all(pool, blocks, keys)
            held.append(blocks)
        else:
            pool.release(blocks)
            if held:
                pool.release(held.pop(0))
        in_use = {block for blocks in held for block in blocks}
        assert 0 not in in_use
        assert pool.num_in_use == len(in_use)
        assert pool.num_in_use + pool.num_free == num_blocks - 1
        for block in in_use:
            assert pool.ref_count(block) == sum(blocks.count(block) for blocks in held)
    for blocks in held:
        pool.release(blocks)
    assert (pool.num_in_use, pool.num_free) == (0, num_blocks - 1)
