"""Who gets which blocks and which place in the next step.

First come, first served. Running sequences are visited from the oldest to the
newest: each gets its prefill chunk or a block for its next token, if need be from
the newest running one, which then waits again at the head of the queue and is
computed anew (recomputation is cheap beside a copy of the cache, and by batch
invariance it gives the same bits). Then waiting sequences are admitted while
there is room. The decode rows are chosen in `batch.py`.

Why blocks may be given on at once, with a plan still in flight: a runner
executes plans in order, and whoever gets a block writes each of its slots before
it reads it. So a plan in flight that still reads or writes a block of a sequence
that has ended, or was preempted, is done before a later plan overwrites it; and a
row in flight of such a sequence writes only its own newest position, which lies
in no published block.

Knows nothing of requests, seeds, stop tokens or events: that is `core.py`.
"""

from __future__ import annotations

from collections import deque

from qwen3_a8w8.engine.batch import choose_decode
from qwen3_a8w8.engine.draft import ScheduledStep, StepDraft
from qwen3_a8w8.engine.plan import RunnerCapabilities
from qwen3_a8w8.engine.sequence import Gang, Sequence, SequenceState
from qwen3_a8w8.engine.stats import Decision, StepCounters
from qwen3_a8w8.kv_cache.block_pool import BlockPool
from qwen3_a8w8.kv_cache.prefix_index import BlockKey


class Scheduler:
    """The queue, the running set and their blocks.

    Attributes:
        waiting: sequences without blocks, oldest first.
        running: sequences with blocks, oldest first, and older than every waiting one.
        counters: totals of what was planned.
        last_decision: why the last step is as it is.
    """

    def __init__(
        self, capabilities: RunnerCapabilities, pool: BlockPool, max_running_requests: int
    ) -> None:
        self._capabilities = capabilities
        self._pool = pool
        self._max_running_requests = max_running_requests
        self._to_release: list[int] = []
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.counters = StepCounters()
        self.last_decision: Decision | None = None

    def add(self, seq: Sequence) -> None:
        """Queues a sequence; `seq_id` must be above that of every earlier one."""
        self.waiting.append(seq)

    def finish(self, seq: Sequence) -> None:
        """Takes a sequence out, wherever it is, and gives its blocks back."""
        if seq.state is SequenceState.WAITING:
            self.waiting.remove(seq)
        else:
            self.running.remove(seq)
        self._pool.release(seq.block_ids)
        seq.block_ids = []
        seq.state = SequenceState.FINISHED
        if seq.is_started:
            self._to_release.append(seq.seq_id)

    def schedule(self, step_id: int) -> ScheduledStep | None:
        """Plans the next step.

        Returns:
            The step, or None when nothing can be computed and nothing is to be released.
        """
        draft = StepDraft(step_id, self._capabilities)
        ready = self._visit_running(draft)
        if draft.preempted:
            draft.blocked = "blocks were taken from running sequences in this step"
        else:
            self._admit(draft)
        choice = choose_decode(
            ready, self._capabilities.decode_batch_sizes, self._capabilities.decode_step_s
        )
        if choice is not None:
            draft.set_decode(choice)
        if draft.has_work:
            self.last_decision = draft.decision()
            self.counters.count(self.last_decision)
        elif not self._to_release:
            return None
        step = draft.finish(tuple(self._to_release))
        self._to_release.clear()
        return step

    def confirm(self, step: ScheduledStep) -> None:
        """Takes note that the runner has done a step: its samples land, full blocks get public."""
        block_size = self._pool.block_size
        for work in step.work:
            seq = work.seq
            seq.num_in_flight -= work.is_sampled
            is_own = seq.num_preemptions == work.num_preemptions
            if seq.state is SequenceState.FINISHED or not is_own:
                continue
            num_full_blocks = work.end // block_size
            if num_full_blocks > seq.num_published_blocks:
                keys = seq.block_keys(block_size)
                for i in range(seq.num_published_blocks, num_full_blocks):
                    self._pool.publish(seq.block_ids[i], keys[i])
                seq.num_published_blocks = num_full_blocks

    def _visit_running(self, draft: StepDraft) -> list[Sequence]:
        """Gives running sequences chunks and blocks; returns those that can decode."""
        # Judged before this step's chunks count as done, because they run in the same step.
        decodable = {seq.seq_id for seq in self.running if seq.can_decode}
        ready: list[Sequence] = []
        held_up: set[Gang] = set()
        for seq in list(self.running):
            # Only newer sequences than the one visited are preempted, so nobody loses blocks
            # that this draft has already planned to use.
            if seq.is_prefilling:
                draft.add_chunk(seq)
            elif seq.seq_id in decodable:
                if seq.can_decode and self._reserve(seq, draft):
                    ready.append(seq)
                elif seq.gang is not None:
                    held_up.add(seq.gang)  # a member lacks a block or was preempted just now
        return [seq for seq in ready if seq.gang not in held_up]

    def _reserve(self, seq: Sequence, draft: StepDraft) -> bool:
        """Gets the block that the next token's K and V go to; False: not in this step."""
        num_missing = self._pool.blocks_for(seq.num_total_tokens) - len(seq.block_ids)
        while num_missing > self._pool.num_free:
            newest = self.running[-1]
            if newest is seq:
                return False  # it keeps what it has and waits for an older one to end
            self._preempt(newest)
            draft.preempted.append(newest.seq_id)
        if num_missing > 0:
            seq.block_ids += self._pool.allocate(num_missing)
        return True

    def _preempt(self, seq: Sequence) -> None:
        self.running.remove(seq)
        self.waiting.appendleft(seq)
        self._pool.release(seq.block_ids)
        seq.block_ids = []
        seq.state = SequenceState.WAITING
        seq.num_computed_tokens = 0
        seq.num_preemptions += 1
        self.counters.num_preemptions += 1

    def _admit(self, draft: StepDraft) -> None:
        """Moves sequences from the queue to the running set, in order, while all limits allow."""
        while self.waiting and draft.has_prefill_room:
            gang = self.waiting[0].gang
            group = [seq for seq in self.waiting if seq.gang is gang] if gang else [self.waiting[0]]
            if any(seq.num_in_flight for seq in group):
                draft.blocked = "it was preempted with a sample in flight that isn't known yet"
                return
            if not gang and self._is_being_computed(group[0]):
                draft.blocked = "a running sequence is computing its prefix; it waits to share it"
                return
            num_places = self._max_running_requests - len(self.running)
            if len(group) > num_places:
                draft.blocked = f"needs {len(group)} running places, {num_places} are free"
                return
            if not self._allocate(group):
                draft.blocked = f"its prompt doesn't fit the {self._pool.num_free} free KV blocks"
                return
            for seq in group:
                self.waiting.popleft()
                self.running.append(seq)
                self._begin(seq, draft)

    def _reusable_keys(self, seq: Sequence) -> list[BlockKey]:
        # The last token is always computed: there have to be logits to sample from.
        num_reusable = (len(seq.token_ids) - 1) // self._pool.block_size
        return seq.block_keys(self._pool.block_size)[:num_reusable]

    def _is_being_computed(self, seq: Sequence) -> bool:
        """Whether the first block it lacks is soon to come out of a running prefill.

        So that several answers to one prompt, or a burst with one system prompt, compute it
        once. The prefill it waits for is older, so it goes on whatever happens.
        """
        if not self._pool.has_prefix_cache:
            return False
        keys = self._reusable_keys(seq)
        first = self._pool.num_known_blocks(keys)
        if first == len(keys):
            return False
        block_size = self._pool.block_size
        return any(
            other.num_published_blocks <= first < other.prefill_end // block_size
            and other.block_keys(block_size)[first] == keys[first]
            for other in self.running
        )

    def _allocate(self, group: list[Sequence]) -> bool:
        """Gets blocks for all known tokens of all of the group, or none at all.

        One block per running sequence is left, so that an admission isn't undone by their
        next tokens; members of the group's own batch stand still until it is admitted.
        """
        gang = group[0].gang
        num_spare = sum(seq.gang is None or seq.gang is not gang for seq in self.running)
        for i, seq in enumerate(group):
            seq.block_ids = self._pool.acquire_prefix(self._reusable_keys(seq))
            seq.num_published_blocks = len(seq.block_ids)
            num_missing = self._pool.blocks_for(len(seq.token_ids)) - len(seq.block_ids)
            if num_missing + num_spare > self._pool.num_free:
                for done in group[: i + 1]:
                    self._pool.release(done.block_ids)
                    done.block_ids = []
                return False
            seq.block_ids += self._pool.allocate(num_missing)
        return True

    def _begin(self, seq: Sequence, draft: StepDraft) -> None:
        num_cached_tokens = seq.num_published_blocks * self._pool.block_size
        seq.state = SequenceState.RUNNING
        seq.num_computed_tokens = num_cached_tokens
        seq.prefill_end = len(seq.token_ids)
        if not seq.is_started:
            seq.is_started = True
            seq.num_cached_tokens = min(num_cached_tokens, seq.num_prompt_tokens)
            draft.start(seq)
            self.counters.num_prefix_query_tokens += seq.prefill_end
            self.counters.num_prefix_hit_tokens += num_cached_tokens
        draft.add_chunk(seq)
