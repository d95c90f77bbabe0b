"""Allocation of KV blocks: reference counts, the free list, and the cached blocks.

A block is in exactly one of three states: held (one or more references), cached
(no reference, but its content can be found by prefix; the least recently used is
overwritten first), or free. Cached blocks count as free, because `allocate` can
reuse them at once. Knows block numbers only: no tensor, no sequence, no scheduling.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence

from qwen3_a8w8.config import SCRATCH_BLOCK
from qwen3_a8w8.errors import ConfigError
from qwen3_a8w8.kv_cache.prefix_index import BlockKey, PrefixIndex


class BlockPool:
    """Reference-counted KV blocks with a prefix cache among the unreferenced ones.

    Attributes:
        block_size: tokens per block.
        num_usable_blocks: blocks that sequences can hold, without the scratch block.
    """

    def __init__(
        self, num_kv_blocks: int, block_size: int, *, enable_prefix_caching: bool = True
    ) -> None:
        """Creates a pool in which every block but the scratch block is free.

        Args:
            num_kv_blocks: blocks in the cache, scratch block included; at least 2.
            block_size: tokens per block.
            enable_prefix_caching: keep published blocks cached after their last release.

        Raises:
            ConfigError: there is no block besides the scratch block.
        """
        if num_kv_blocks < 2:
            raise ConfigError(
                f"num_kv_blocks is {num_kv_blocks}, expected at least 2: block {SCRATCH_BLOCK} "
                "is the scratch block and sequences need at least one more"
            )
        self.block_size = block_size
        self.num_usable_blocks = num_kv_blocks - 1
        self._index = PrefixIndex()
        self._keeps_unheld = enable_prefix_caching
        self._ref_counts = [0] * num_kv_blocks
        self._free = deque(i for i in range(num_kv_blocks) if i != SCRATCH_BLOCK)
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` can return, cached ones included."""
        return len(self._free) + len(self._cached)

    @property
    def num_in_use(self) -> int:
        """Blocks with at least one reference."""
        return self.num_usable_blocks - self.num_free

    def ref_count(self, block_id: int) -> int:
        """Number of references to a block."""
        return self._ref_counts[block_id]

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks needed for that many tokens."""
        return -(-num_tokens // self.block_size)

    def allocate(self, num_blocks: int) -> list[int]:
        """Allocates blocks with one reference each; their content is undefined.

        Free blocks go first, then cached ones, the least recently used first.

        Raises:
            RuntimeError: fewer blocks are free; nothing has been allocated.
        """
        if num_blocks > self.num_free:
            raise RuntimeError(
                f"{num_blocks} KV blocks requested, {self.num_free} of {self.num_usable_blocks} "
                "are free; check num_free before allocating"
            )
        block_ids: list[int] = []
        for _ in range(num_blocks):
            if self._free:
                block_id = self._free.popleft()
            else:
                block_id, _ = self._cached.popitem(last=False)
                self._index.remove(block_id)
            self._ref_counts[block_id] = 1
            block_ids.append(block_id)
        return block_ids

    def release(self, block_ids: Sequence[int]) -> None:
        """Drops one reference to each block.

        Args:
            block_ids: one sequence's block table, in its order.

        Raises:
            RuntimeError: a block has no reference (a double free), or is the scratch block.
        """
        # A later block is only reachable through the earlier ones: evict the tail first.
        for block_id in reversed(block_ids):
            if self._ref_counts[block_id] == 0:
                raise RuntimeError(f"KV block {block_id} is released but has no reference")
            self._ref_counts[block_id] -= 1
            if self._ref_counts[block_id] == 0:
                is_indexed = block_id in self._index
                if is_indexed and self._keeps_unheld:
                    self._cached[block_id] = None
                    continue
                if is_indexed:
                    self._index.remove(block_id)
                self._free.append(block_id)

    def publish(self, block_id: int, key: BlockKey) -> None:
        """Adds a held block to the prefix index: while it is held, and with caching after.

        Call it only once the step that wrote the block's last token is confirmed, and
        with the key of exactly that content. If another block already holds the content,
        the index keeps that one and this block stays private.

        Raises:
            RuntimeError: the block has no reference.
        """
        if self._ref_counts[block_id] == 0:
            raise RuntimeError(f"KV block {block_id} is published but has no reference")
        self._index.insert(key, block_id)

    def num_known_blocks(self, keys: Sequence[BlockKey]) -> int:
        """Number of blocks that `acquire_prefix` would return."""
        return len(self._index.longest_prefix(keys))

    def acquire_prefix(self, keys: Sequence[BlockKey]) -> list[int]:
        """Takes a reference to each block of the longest cached prefix.

        Args:
            keys: keys of consecutive blocks from position 0, see `extend_block_keys`.

        Returns:
            Blocks for the first keys, in order; read-only for the caller.
        """
        block_ids = self._index.longest_prefix(keys)
        for block_id in block_ids:
            if self._ref_counts[block_id] == 0:
                del self._cached[block_id]
            self._ref_counts[block_id] += 1
        return block_ids
