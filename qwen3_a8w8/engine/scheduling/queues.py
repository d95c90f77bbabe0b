"""Who waits and who runs, in the order of rank, and the KV blocks that they hold.

Moves sequences between waiting and running and keeps what every move entails; which of them
moves is the scheduler's decision. Never takes a block from one sequence for another.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence as Many

from qwen3_a8w8.engine.scheduling.step_builder import ScheduledWork
from qwen3_a8w8.engine.sequence import Sequence, SequenceState
from qwen3_a8w8.kv_cache.block_pool import BlockPool
from qwen3_a8w8.kv_cache.prefix_index import BlockKey


class SequenceBlocks:
    """Block tables over one pool."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated."""
        return self._pool.num_free

    def num_missing(self, seq: Sequence) -> int:
        """Blocks the sequence lacks for the token that its next step computes."""
        return self._pool.blocks_for(seq.num_total_tokens) - len(seq.block_ids)

    def extend(self, seq: Sequence, num_blocks: int) -> None:
        """Allocates blocks for a sequence; as many must be free."""
        if num_blocks > 0:
            seq.block_ids = (*seq.block_ids, *self._pool.allocate(num_blocks))

    def extend_for_drafts(self, seq: Sequence, num_draft_tokens: int) -> int:
        """Allocates blocks for draft tokens while any are free; returns how many have room."""
        num_missing = self._pool.blocks_for(seq.num_total_tokens + num_draft_tokens) - len(
            seq.block_ids
        )
        self.extend(seq, min(num_missing, self._pool.num_free))
        return min(
            num_draft_tokens, len(seq.block_ids) * self._pool.block_size - seq.num_total_tokens
        )

    def admit(self, group: Many[Sequence], running: Many[Sequence]) -> bool:
        """Allocates blocks for all known tokens of all of a group, or none at all.

        What the prefix cache has is shared; `num_published_blocks` says how much that is. One
        block per running sequence is left, so that an admission isn't undone by their next
        tokens; members of the group's own batch don't decode until it is admitted.

        Args:
            group: one sequence, or the waiting members of an explicit batch.
            running: sequences with blocks.
        """
        explicit_batch = group[0].explicit_batch
        num_spare = sum(
            seq.explicit_batch is None or seq.explicit_batch is not explicit_batch
            for seq in running
        )
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
        """Whether a running prefill is about to compute the first block that it lacks.

        So that several answers to one prompt, or a burst with one system prompt, compute it
        once. The prefill that it waits for continues, or is preempted and waited for no longer.
        """
        keys = self._reusable_keys(seq)
        first = self._pool.num_known_blocks(keys)
        if first == len(keys):
            return False  # also where nothing is shared
        block_size = self._pool.block_size
        return any(
            other.num_published_blocks <= first < other.prefill_end // block_size
            and other.block_keys(block_size)[first] == keys[first]
            for other in running
        )

    def publish(self, work: ScheduledWork, num_accepted: int) -> None:
        """Makes the blocks that a confirmed step has filled findable by their prefix.

        Args:
            work: the sequence's share of the step; its blocks are still its own.
            num_accepted: accepted draft tokens.
        """
        seq, block_size = work.seq, self._pool.block_size
        num_full_blocks = (work.end + num_accepted) // block_size
        if not seq.shares_blocks or num_full_blocks <= seq.num_published_blocks:
            return  # as after most decode steps
        # The ids of accepted draft tokens aren't known yet; their block is published a step later.
        keys = seq.block_keys(block_size)
        num_full_blocks = min(num_full_blocks, len(keys))
        for i in range(seq.num_published_blocks, num_full_blocks):
            self._pool.publish(seq.block_ids[i], keys[i])
        seq.num_published_blocks = max(seq.num_published_blocks, num_full_blocks)

    def release(self, seq: Sequence) -> None:
        """Frees all blocks of a sequence."""
        self._pool.release(seq.block_ids)
        seq.block_ids = ()

    def _reusable_keys(self, seq: Sequence) -> list[BlockKey]:
        if not seq.shares_blocks or seq.wants_prompt_logprobs:
            return []  # the latter needs logits of every position
        # The last token is always computed: there have to be logits to sample from.
        num_reusable = (len(seq.token_ids) - 1) // self._pool.block_size
        return seq.block_keys(self._pool.block_size)[:num_reusable]


def _rank(seq: Sequence) -> tuple[int, int]:
    return seq.rank


class Queues:
    """The active sequences, by state.

    Attributes:
        waiting: those without blocks, lowest rank value first.
        running: those with blocks, likewise.
        isolated: the only one that may run, while one is retried alone; see `recovery.py`.
    """

    def __init__(self, blocks: SequenceBlocks) -> None:
        self._blocks = blocks
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.isolated: Sequence | None = None

    @property
    def num_waiting_tokens(self) -> int:
        """Tokens of the waiting sequences."""
        return sum(len(seq.token_ids) for seq in self.waiting)

    @property
    def first_waiting(self) -> Sequence | None:
        """The next sequence to admit."""
        if self.isolated is not None:
            return self.isolated if self.isolated.state is SequenceState.WAITING else None
        return self.waiting[0] if self.waiting else None

    def add(self, seq: Sequence) -> None:
        """Queues a sequence; `seq_id` must be above that of every earlier one."""
        insort(self.waiting, seq, key=_rank)

    def admit(self, seq: Sequence) -> None:
        """Moves a waiting sequence, which has its blocks, to the running ones."""
        self.waiting.remove(seq)
        insort(self.running, seq, key=_rank)
        seq.state = SequenceState.RUNNING

    def preempt(self, seq: Sequence) -> None:
        """Frees a running sequence's blocks; it waits, and will be recomputed."""
        self.running.remove(seq)
        insort(self.waiting, seq, key=_rank)
        self._blocks.release(seq)
        seq.state = SequenceState.WAITING
        seq.num_computed_tokens = 0
        seq.num_preemptions += 1

    def preempt_all(self) -> None:
        """Puts every running sequence back; no step may be in flight."""
        for seq in list(self.running):
            self.preempt(seq)

    def remove(self, seq: Sequence) -> None:
        """Removes a sequence that ends, wherever it is, and frees its blocks."""
        (self.waiting if seq.state is SequenceState.WAITING else self.running).remove(seq)
        self._blocks.release(seq)
        seq.state = SequenceState.FINISHED
