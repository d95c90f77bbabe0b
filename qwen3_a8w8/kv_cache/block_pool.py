"""Who holds which KV block: reference counts, the free list, and what stays cached.

A block is in exactly one of three places: held (one or more references), cached
(no reference, but its content can be found by prefix; the least recently used is
overwritten first), or free. Cached blocks count as free, because they can be had
at once. Knows numbers only: no tensor, no sequence, no scheduling.
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
        num_usable_blocks: blocks that sequences can hold; the scratch block isn't one of them.
    """

    def __init__(
        self, num_kv_blocks: int, block_size: int, *, enable_prefix_caching: bool = True
    ) -> None:
        """Makes a pool in which every block but the scratch block is free.

        Args:
            num_kv_blocks: blocks in the cache, scratch block included; at least 2.
            block_size: tokens per block.
            enable_prefix_caching: keep published blocks findable once nobody holds them.

        Raises:
            ConfigError: there is no block beside the scratch block.
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
        """Blocks that `allocate` can give, cached ones included."""
        return len(self._free) + len(self._cached)

    @property
    def num_in_use(self) -> int:
        """Blocks that somebody holds."""
        return self.num_usable_blocks - self.num_free

    def ref_count(self, block_id: int) -> int:
        """How often a block is held."""
        return self._ref_counts[block_id]

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks needed to hold that many tokens."""
        return -(-num_tokens // self.block_size)

    def allocate(self, num_blocks: int) -> list[int]:
        """Hands out blocks with one reference each; their content is undefined.

        Free blocks go first, then cached ones, the least recently used first.

        Raises:
            RuntimeError: fewer blocks are free; nothing has been handed out.
        """
        if num_blocks > self.num_free:
            raise RuntimeError(
                f"{num_blocks} KV blocks asked for, {self.num_free} of {self.num_usable_blocks} "
                "are free; compare with num_free before allocating"
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
        """Gives one reference of each block back.

        Args:
            block_ids: one sequence's block table, in its order.

        Raises:
            RuntimeError: a block isn't held (a double free), or is the scratch block.
        """
        # A later block can only be found through the earlier ones: let the tail age first.
        for block_id in reversed(block_ids):
            if self._ref_counts[block_id] == 0:
                raise RuntimeError(f"KV block {block_id} is released but nobody holds it")
            self._ref_counts[block_id] -= 1
            if self._ref_counts[block_id] == 0:
                is_known = block_id in self._index
                if is_known and self._keeps_unheld:
                    self._cached[block_id] = None
                    continue
                if is_known:
                    self._index.remove(block_id)
                self._free.append(block_id)

    def publish(self, block_id: int, key: BlockKey) -> None:
        """Makes a held block findable by its prefix: while it is held, and with caching after.

        To be called only once the step that wrote the block's last token is confirmed, and
        with the key of exactly that content. If the content is cached in another block
        already, that one stays and this one remains private.

        Raises:
            RuntimeError: nobody holds the block.
        """
        if self._ref_counts[block_id] == 0:
            raise RuntimeError(f"KV block {block_id} is published but nobody holds it")
        self._index.insert(key, block_id)

    def num_known_blocks(self, keys: Sequence[BlockKey]) -> int:
        """How many blocks `acquire_prefix` would find."""
        return len(self._index.longest_prefix(keys))

    def acquire_prefix(self, keys: Sequence[BlockKey]) -> list[int]:
        """Takes a reference on the blocks that hold the longest known prefix.

        Args:
            keys: keys of consecutive blocks from position 0 on, see `extend_block_keys`.

        Returns:
            Blocks for the first keys, in order; read-only for the caller.
        """
        block_ids = self._index.longest_prefix(keys)
        for block_id in block_ids:
            if self._ref_counts[block_id] == 0:
                del self._cached[block_id]
            self._ref_counts[block_id] += 1
        return block_ids
