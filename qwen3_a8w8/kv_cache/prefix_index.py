"""Finds KV blocks by the tokens they hold.

A block's content depends on its own tokens and on every token before them, so
its key is a digest over (key of the block before, token ids of this block). The
first block's key starts from a root, which a salt may make one's own.
Knows neither sequences nor reference counts: `block_pool.py` decides how long an
entry lives.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

BlockKey = bytes
"""32-byte chained digest of a block's tokens and all tokens before them."""

_ROOT: BlockKey = b"qwen3-a8w8 prefix root"


def root_key(salt: str | None) -> BlockKey:
    """What the key of a first block is chained to; different for different salts."""
    if salt is None:
        return _ROOT
    # Lone surrogates can come in through JSON escapes; they are as good a salt as any.
    return hashlib.blake2b(
        salt.encode("utf-8", "surrogatepass"), digest_size=32, key=_ROOT
    ).digest()


def extend_block_keys(
    keys: list[BlockKey], token_ids: Sequence[int], block_size: int, root: BlockKey = _ROOT
) -> None:
    """Appends to `keys`, in place, those of the full blocks of `token_ids` it doesn't cover yet.

    A cryptographic digest, because a collision would hand one client another one's cache.

    Args:
        keys: keys of the first len(keys) blocks of the same tokens.
        token_ids: all tokens of the sequence, from position 0 on.
        block_size: tokens per block.
        root: see `root_key`.
    """
    for start in range(len(keys) * block_size, len(token_ids) - block_size + 1, block_size):
        digest = hashlib.blake2b(keys[-1] if keys else root, digest_size=32)
        digest.update(array("q", token_ids[start : start + block_size]).tobytes())
        keys.append(digest.digest())


class PrefixIndex:
    """A one-to-one table between block keys and the blocks that hold their content."""

    def __init__(self) -> None:
        self._block_of: dict[BlockKey, int] = {}
        self._key_of: dict[int, BlockKey] = {}

    def __len__(self) -> int:
        return len(self._block_of)

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._key_of

    def insert(self, key: BlockKey, block_id: int) -> bool:
        """Enters a block, unless another block is entered under the same key.

        Returns:
            Whether the table now names `block_id` for `key`.
        """
        if self._block_of.setdefault(key, block_id) != block_id:
            return False
        self._key_of[block_id] = key
        return True

    def remove(self, block_id: int) -> None:
        """Forgets a block that is entered."""
        del self._block_of[self._key_of.pop(block_id)]

    def longest_prefix(self, keys: Sequence[BlockKey]) -> list[int]:
        """Blocks for the first keys, up to the first key that isn't entered."""
        block_ids: list[int] = []
        for key in keys:
            block_id = self._block_of.get(key)
            if block_id is None:
                break
            block_ids.append(block_id)
        return block_ids
