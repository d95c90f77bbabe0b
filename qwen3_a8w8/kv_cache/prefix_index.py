"""Finds KV blocks by the tokens they hold.

A block's content depends on its own tokens and on every token before them, so
its key is a digest over (key of the previous block, token ids of this block). The
first block's key starts from a root key, which a salt makes private.
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
    """The key that a first block's key is chained to; different for different salts."""
    if salt is None:
        return _ROOT
    # Lone surrogates can arrive through JSON escapes; a salt may contain them.
    return hashlib.blake2b(
        salt.encode("utf-8", "surrogatepass"), digest_size=32, key=_ROOT
    ).digest()


def extend_block_keys(
    keys: list[BlockKey], token_ids: Sequence[int], block_size: int, root: BlockKey = _ROOT
) -> None:
    """Appends to `keys`, in place, the keys of the further full blocks of `token_ids`.

    A cryptographic digest, because a collision would give one client another client's cache.

    Args:
        keys: keys of the first len(keys) blocks of the same tokens.
        token_ids: all tokens of the sequence, from position 0.
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
        """Adds a block, unless the table has another block for the same key.

        Returns:
            Whether the table now maps `key` to `block_id`.
        """
        if self._block_of.setdefault(key, block_id) != block_id:
            return False
        self._key_of[block_id] = key
        return True

    def remove(self, block_id: int) -> None:
        """Removes a block that the table has."""
        del self._block_of[self._key_of.pop(block_id)]

    def longest_prefix(self, keys: Sequence[BlockKey]) -> list[int]:
        """Blocks for the first keys, up to the first key that the table doesn't have."""
        block_ids: list[int] = []
        for key in keys:
            block_id = self._block_of.get(key)
            if block_id is None:
                break
            block_ids.append(block_id)
        return block_ids
