"""Who gets which blocks and which place in the next step.

By rank: priority first, then arrival. Running sequences that can decode are visited
in this order: each gets a block for its next token, if need be from the running one
of the lowest rank, which then waits again and is computed anew (recomputation is
cheap beside a copy of the cache, and by batch invariance it gives the same bits).
The decode rows are chosen in `batch.py`. Then the step's one prefill dispatch is
filled, in the order of rank again, with chunks of running sequences and of waiting
ones that are admitted while there is room; `prefill_budget.py` says how many tokens
it may have beside the decode rows, and it may take several steps, a group of layers
in each. Which blocks a sequence gets is `sequence_blocks.py`.

Why blocks may be given on at once, with a plan still in flight: a runner
executes plans in order, and whoever gets a block writes each of its slots before
it reads it. So a plan in flight that still reads or writes a block of a sequence
that has ended, or was preempted, is done before a later plan overwrites it; and a
row in flight of such a sequence writes only its own newest positions, which lie
in no published block.

Knows nothing of requests, seeds, stop tokens or events: that is `core.py`.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Mapping

from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.engine.batch import DecodeChoice, choose_decode
from qwen3_a8w8.engine.draft import ScheduledChunk, ScheduledStep, StepDraft
from qwen3_a8w8.engine.plan import RunnerCapabilities, StepPlan, StepResult
from qwen3_a8w8.engine.prefill_budget import PrefillBudget
from qwen3_a8w8.engine.sequence import Gang, Sequence, SequenceState
from qwen3_a8w8.engine.sequence_blocks import SequenceBlocks
from qwen3_a8w8.engine.stats import Decision, StepCounters
from qwen3_a8w8.experimental import PROMPT_LOOKUP
from qwen3_a8w8.kv_cache.block_pool import BlockPool


def _rank(seq: Sequence) -> tuple[int, int]:
    return seq.rank


class Scheduler:
    """The queue, the running set and their blocks.

    Attributes:
        waiting: sequences without blocks, lowest rank value first.
        running: sequences with blocks, likewise.
        counters: totals of what was planned.
        budget: how many prompt tokens a step may have.
        last_decision: why the last step is as it is.
        trial: the only sequence that may run, while one is tried alone; see `recovery.py`.
    """

    def __init__(
        self,
        capabilities: RunnerCapabilities,
        pool: BlockPool,
        config: EngineConfig,
        clock: Callable[[], float],
    ) -> None:
        num_layers = capabilities.num_layers
        self._capabilities = capabilities
        self._clock = clock
        self._blocks = SequenceBlocks(pool)
        self._max_running_requests = config.max_running_requests
        self._layers_per_dispatch = min(
            config.prefill_layers_per_dispatch or num_layers, num_layers
        )
        self._max_drafts = capabilities.max_draft_tokens if PROMPT_LOOKUP in config.enable else 0
        stall_ms = config.max_decode_stall_ms
        self.budget = PrefillBudget(
            capabilities.prefill_chunk_tokens,
            None if stall_ms is None else stall_ms / 1e3,
            capabilities.prefill_token_s,
            self._layers_per_dispatch / num_layers,
        )
        self._open_chunks: list[ScheduledChunk] = []  # through the first layers, not yet the last
        self._next_layer = 0
        self._num_steps_owed = 0
        self._drafting: Sequence | None = None  # its drafts are being checked
        self._to_release: list[int] = []
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.counters = StepCounters()
        self.last_decision: Decision | None = None
        self.trial: Sequence | None = None

    @property
    def num_waiting_tokens(self) -> int:
        """Tokens of the waiting sequences."""
        return sum(len(seq.token_ids) for seq in self.waiting)

    def add(self, seq: Sequence) -> None:
        """Queues a sequence; `seq_id` must be above that of every earlier one."""
        insort(self.waiting, seq, key=_rank)

    def finish(self, seq: Sequence) -> None:
        """Takes a sequence out, wherever it is, and gives its blocks back."""
        if seq.state is SequenceState.WAITING:
            self.waiting.remove(seq)
        else:
            self.running.remove(seq)
        self._blocks.release(seq)
        seq.state = SequenceState.FINISHED
        if seq.is_started:
            self._to_release.append(seq.seq_id)

    def schedule(self, step_id: int) -> ScheduledStep | None:
        """Plans the next step.

        Returns:
            The step, or None when nothing can be computed and nothing is to be released, or
            when drafts can only be made once a sample in flight is known.
        """
        if self._waits_for_a_sample():
            return None
        draft = StepDraft(step_id, self._capabilities)
        choice = choose_decode(
            self._reserve_for_decode(draft),
            self._capabilities.decode_batch_sizes,
            self._capabilities.decode_step_s,
        )
        if choice is not None:
            draft.set_decode(choice, self._propose_drafts(choice))
        self._plan_prefill(draft, choice)
        if draft.has_work:
            self.last_decision = draft.decision()
            self.counters.count(self.last_decision)
        elif not self._to_release:
            return None
        step = draft.finish(tuple(self._to_release))
        self._to_release.clear()
        return step

    def confirm(
        self, step: ScheduledStep, result: StepResult, num_sampled: Mapping[int, int]
    ) -> None:
        """Takes note that the runner has done a step: its samples land, full blocks get public.

        Args:
            step: the step.
            result: what it took.
            num_sampled: tokens it gave, by sequence.
        """
        num_prefill_tokens = sum(chunk.num_tokens for chunk in step.plan.prefill)
        self.budget.observe(num_prefill_tokens, step.prefill_layer_share, result.prefill_time_s)
        for work in step.work:
            seq = work.seq
            seq.num_in_flight -= work.is_sampled
            num_kept = 0
            if work.num_drafts:
                num_kept = num_sampled[seq.seq_id] - 1
                self._drafting = None
            self.counters.num_drafts_kept += num_kept
            is_own = seq.num_preemptions == work.num_preemptions
            if seq.state is SequenceState.FINISHED or not is_own:
                continue
            seq.num_computed_tokens += num_kept
            self._blocks.publish(work, num_kept)

    def vacate_all(self) -> None:
        """Puts every running sequence back in the queue; no step may be in flight."""
        for seq in list(self.running):
            self._vacate(seq)

    def restart_all(self, lost_plans: Iterable[StepPlan]) -> None:
        """Puts everything back in the queue as if the runner had never heard of it.

        Args:
            lost_plans: plans whose results are of no use; what of them was carried out isn't known.
        """
        self.vacate_all()
        for plan in lost_plans:
            self._to_release += plan.release
        for seq in self.waiting:
            seq.num_in_flight = 0
            if seq.is_started:
                seq.is_started = False
                self._to_release.append(seq.seq_id)
        self._open_chunks = []
        self._num_steps_owed = 0
        self._drafting = None

    def _waits_for_a_sample(self) -> bool:
        """Whether the only sequence that decodes can't be given drafts yet.

        Planning ahead would save the host's time between two steps, drafts may save whole steps.
        """
        if self._max_drafts == 0:
            return False
        drafting = self._drafting
        if drafting is not None and drafting.state is SequenceState.RUNNING:
            return True  # how far it comes isn't known yet
        ready = [seq for seq in self.running if seq.can_decode]
        return len(ready) == 1 and ready[0].gang is None and ready[0].num_in_flight > 0

    def _propose_drafts(self, choice: DecodeChoice) -> tuple[int, ...]:
        """Drafts for a sequence that decodes alone, and blocks for them if there are any free."""
        seq = choice.rows[0]
        if choice.num_ready > 1 or choice.batch_size > 1 or seq.num_in_flight > 0:
            return ()
        drafts = seq.propose_drafts(self._max_drafts)
        drafts = drafts[: self._blocks.extend_for_drafts(seq, len(drafts))]
        self._drafting = seq if drafts else None
        return drafts

    def _reserve_for_decode(self, draft: StepDraft) -> list[Sequence]:
        """Gives decoding sequences blocks for their next token; returns those that have one."""
        ready: list[Sequence] = []
        held_up: set[Gang] = set()
        for seq in [seq for seq in self.running if seq.can_decode]:
            # Only lower ranks than the one visited are preempted, and none is visited twice.
            if seq.can_decode and self._reserve(seq, draft):
                ready.append(seq)
            elif seq.gang is not None:
                held_up.add(seq.gang)  # a member lacks a block or was preempted just now
        return [seq for seq in ready if seq.gang not in held_up]

    def _reserve(self, seq: Sequence, draft: StepDraft) -> bool:
        """Gets the block that the next token's K and V go to; False: not in this step."""
        num_missing = self._blocks.num_missing(seq)
        while num_missing > self._blocks.num_free:
            lowest = self.running[-1]
            if lowest is seq:
                return False  # it keeps what it has and waits for another one to end
            self._preempt(lowest)
            draft.preempted.append(lowest.seq_id)
        self._blocks.extend(seq, num_missing)
        return True

    def _preempt(self, seq: Sequence) -> None:
        self._vacate(seq)
        self.counters.num_preemptions += 1

    def _vacate(self, seq: Sequence) -> None:
        self.running.remove(seq)
        insort(self.waiting, seq, key=_rank)
        self._blocks.release(seq)
        seq.state = SequenceState.WAITING
        seq.num_computed_tokens = 0
        seq.num_preemptions += 1

    def _plan_prefill(self, draft: StepDraft, choice: DecodeChoice | None) -> None:
        """Fills the step's prefill dispatch, unless decoding sequences are owed a step first."""
        if choice is not None and self._num_steps_owed > 0:
            self._num_steps_owed -= 1
            draft.blocked = "the last chunk held up decoding sequences that haven't had their turn"
            return
        self._num_steps_owed = 0
        self._open_chunks = [entry for entry in self._open_chunks if entry.is_wanted]
        if self._open_chunks:
            draft.continue_chunks(self._open_chunks)
            draft.blocked = "a prefill dispatch has layers left"
        else:
            self._next_layer = 0
            draft.limit_prefill(self.budget.num_tokens(is_decoding=choice is not None))
            for seq in self.running:
                if seq.is_prefilling:
                    draft.add_chunk(seq)
            if draft.preempted:
                draft.blocked = "blocks were taken from running sequences in this step"
            else:
                self._admit(draft)
        if not draft.chunks:
            return
        end = min(self._next_layer + self._layers_per_dispatch, self._capabilities.num_layers)
        draft.set_prefill_layers(self._next_layer, end)
        self._next_layer = end
        is_through = end == self._capabilities.num_layers
        self._open_chunks = [] if is_through else draft.chunks
        if choice is not None:
            # Rows that take turns shall all have had one before the next chunk.
            self._num_steps_owed = -(-choice.num_ready // choice.batch_size) - 1

    def _admit(self, draft: StepDraft) -> None:
        """Moves sequences from the queue to the running set, in order, while all limits allow."""
        while (first := self._next_waiting(draft)) is not None and draft.has_prefill_room:
            gang = first.gang
            group = [seq for seq in self.waiting if seq.gang is gang] if gang else [first]
            if any(seq.num_in_flight for seq in group):
                draft.blocked = "it was preempted with a sample in flight that isn't known yet"
                return
            if not gang and self._blocks.is_being_computed(group[0], self.running):
                draft.blocked = "a running sequence is computing its prefix; it waits to share it"
                return
            num_places = self._max_running_requests - len(self.running)
            if len(group) > num_places:
                draft.blocked = f"needs {len(group)} running places, {num_places} are free"
                return
            if not self._blocks.admit(group, self.running):
                draft.blocked = f"its prompt doesn't fit the {self._blocks.num_free} free KV blocks"
                return
            for seq in group:
                self.waiting.remove(seq)
                insort(self.running, seq, key=_rank)
                self._begin(seq, draft)

    def _next_waiting(self, draft: StepDraft) -> Sequence | None:
        if self.trial is None:
            return self.waiting[0] if self.waiting else None
        draft.blocked = "one sequence is tried alone, to find the cause of a failure"
        return self.trial if self.trial.state is SequenceState.WAITING else None

    def _begin(self, seq: Sequence, draft: StepDraft) -> None:
        num_cached_tokens = self._blocks.num_cached_tokens(seq)
        seq.state = SequenceState.RUNNING
        seq.num_computed_tokens = num_cached_tokens
        seq.prefill_end = len(seq.token_ids)
        if not seq.is_started:
            seq.is_started = True
            draft.start(seq)
        if seq.started_s is None:
            seq.started_s = self._clock()
            self.counters.num_started += 1
            self.counters.queue_time_s += seq.started_s - seq.arrived_s
            seq.num_cached_tokens = min(num_cached_tokens, seq.num_prompt_tokens)
            self.counters.num_prefix_query_tokens += seq.prefill_end
            self.counters.num_prefix_hit_tokens += num_cached_tokens
        draft.add_chunk(seq)
