"""The KV blocks of sequences: what each is given, shares, publishes and gives back.

Between the scheduler, which decides who gets blocks, and the pool, which knows only
numbers. Never takes a block from one sequence for another: that is a decision.
"""

from __future__ import annotations

from collections.abc import Sequence as Many

from qwen3_a8w8.engine.draft import ScheduledWork
from qwen3_a8w8.engine.sequence import Sequence
from qwen3_a8w8.kv_cache.block_pool import BlockPool
from qwen3_a8w8.kv_cache.prefix_index import BlockKey


class SequenceBlocks:
    """Block tables over one pool."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool

    @property
    def num_free(self) -> int:
        """Blocks that can be given."""
        return self._pool.num_free

    def num_missing(self, seq: Sequence) -> int:
        """Blocks the sequence lacks for the token that its next step computes."""
        return self._pool.blocks_for(seq.num_total_tokens) - len(seq.block_ids)

    def extend(self, seq: Sequence, num_blocks: int) -> None:
        """Gives a sequence blocks of its own; as many must be free."""
        if num_blocks > 0:
            seq.block_ids = (*seq.block_ids, *self._pool.allocate(num_blocks))

    def extend_for_drafts(self, seq: Sequence, num_drafts: int) -> int:
        """Gives blocks for drafts as far as any are free; returns the drafts that have room."""
        num_missing = self._pool.blocks_for(seq.num_total_tokens + num_drafts) - len(seq.block_ids)
        self.extend(seq, min(num_missing, self._pool.num_free))
        return min(num_drafts, len(seq.block_ids) * self._pool.block_size - seq.num_total_tokens)

    def admit(self, group: Many[Sequence], running: Many[Sequence]) -> bool:
        """Gives blocks for all known tokens of all of a group, or none at all.

        What the prefix cache has is shared; `num_published_blocks` says how much that is. One
        block per running sequence is left, so that an admission isn't undone by their next
        tokens; members of the group's own batch stand still until it is admitted.

        Args:
            group: one sequence, or the waiting members of an explicit batch.
            running: sequences with blocks.
        """
        gang = group[0].gang
        num_spare = sum(seq.gang is None or seq.gang is not gang for seq in running)
        for i, seq in enumerate(group):
            cached = self._pool.acquire_prefix(self._reusable_keys(seq))
            seq.block_ids = tuple(cached)
            seq.num_published_blocks = len(seq.block_ids)
            num_missing = self._pool.blocks_for(len(seq.token_ids)) - len(seq.block_ids)
            if num_missing + num_spare > self._pool.num_free:
                for done in group[: i + 1]:
                    self.release(done)
                return False
            self.extend(seq, num_missing)
        return True

    def num_cached_tokens(self, seq: Sequence) -> int:
        """Tokens of a sequence just admitted that the prefix cache gave."""
        return seq.num_published_blocks * self._pool.block_size

    def is_being_computed(self, seq: Sequence, running: Many[Sequence]) -> bool:
        """Whether the first block it lacks is soon to come out of a running prefill.

        So that several answers to one prompt, or a burst with one system prompt, compute it
        once. The prefill it waits for goes on, or loses its blocks and is waited for no more.
        """
        keys = self._reusable_keys(seq)
        first = self._pool.num_known_blocks(keys)
        if first == len(keys):
            return False  # as it is where nothing is shared
        block_size = self._pool.block_size
        return any(
            other.num_published_blocks <= first < other.prefill_end // block_size
            and other.block_keys(block_size)[first] == keys[first]
            for other in running
        )

    def publish(self, work: ScheduledWork, num_kept: int) -> None:
        """Makes the blocks that a confirmed step has filled findable by their prefix.

        Args:
            work: the sequence's share of the step; its blocks are still its own.
            num_kept: drafts that came true.
        """
        seq, block_size = work.seq, self._pool.block_size
        num_full_blocks = (work.end + num_kept) // block_size
        if not seq.shares_blocks or num_full_blocks <= seq.num_published_blocks:
            return  # as after most decode steps
        # Of kept drafts the ids aren't taken in yet; their block is published a step later.
        keys = seq.block_keys(block_size)
        num_full_blocks = min(num_full_blocks, len(keys))
        for i in range(seq.num_published_blocks, num_full_blocks):
            self._pool.publish(seq.block_ids[i], keys[i])
        seq.num_published_blocks = max(seq.num_published_blocks, num_full_blocks)

    def release(self, seq: Sequence) -> None:
        """Takes back all that a sequence holds."""
        self._pool.release(seq.block_ids)
        seq.block_ids = ()

    def _reusable_keys(self, seq: Sequence) -> list[BlockKey]:
        if not seq.shares_blocks or seq.wants_prompt_logprobs:
            return []  # the latter needs logits of every position
        # The last token is always computed: there have to be logits to sample from.
        num_reusable = (len(seq.token_ids) - 1) // self._pool.block_size
        return seq.block_keys(self._pool.block_size)[:num_reusable]
