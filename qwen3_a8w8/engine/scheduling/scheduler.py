"""The scheduler: which sequences get KV blocks and a place in the next step.

By rank: priority first, then arrival. Running sequences that can decode are visited
in this order: each gets a block for its next token, if need be by preempting the running
sequence of the lowest rank, which then waits and is recomputed (recomputation is
cheap beside a copy of the cache, and by batch invariance it gives the same bits).
The decode rows are chosen in `step_builder.py`, the prefill dispatch is filled in `prefill.py`,
and `queues.py` keeps the blocks of each sequence.

Why a freed block may be reused at once, with a plan still in flight: a runner executes plans in
order, and the new owner of a block writes each of its slots before it reads it. So a plan in
flight that still reads or writes a block of a sequence that has ended, or was preempted, is done
before a later plan overwrites it; and a row in flight of such a sequence writes only its own
newest positions, which lie in no published block.

Knows nothing of requests, seeds, stop tokens or events: those are `core.py`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.engine.plan import RunnerCapabilities, StepPlan, StepResult
from qwen3_a8w8.engine.scheduling.prefill import PrefillPlanner
from qwen3_a8w8.engine.scheduling.queues import Queues, SequenceBlocks
from qwen3_a8w8.engine.scheduling.step_builder import (
    DecodeChoice,
    ScheduledStep,
    StepBuilder,
    choose_decode,
)
from qwen3_a8w8.engine.sequence import ExplicitBatch, Sequence, SequenceState
from qwen3_a8w8.engine.stats.engine_stats import Decision, StepCounters
from qwen3_a8w8.experimental import PROMPT_LOOKUP
from qwen3_a8w8.kv_cache.block_pool import BlockPool


class Scheduler:
    """The queue, the running set and their blocks, put together into steps.

    Attributes:
        queues: who waits and who runs.
        counters: totals of what was planned.
        prefill: what fills the prefill dispatches.
        last_decision: why the last step is as it is.
    """

    def __init__(
        self,
        capabilities: RunnerCapabilities,
        pool: BlockPool,
        config: EngineConfig,
        clock: Callable[[], float],
    ) -> None:
        self._capabilities = capabilities
        self._blocks = SequenceBlocks(pool)
        self._max_drafts = capabilities.max_draft_tokens if PROMPT_LOOKUP in config.enable else 0
        self._drafting: Sequence | None = None  # its drafts are being checked
        self._to_release: list[int] = []
        self.queues = Queues(self._blocks)
        self.counters = StepCounters()
        self.prefill = PrefillPlanner(
            capabilities, config, self.queues, self._blocks, self.counters, clock
        )
        self.last_decision: Decision | None = None

    def finish(self, seq: Sequence) -> None:
        """Removes a sequence, wherever it is, and frees its blocks."""
        self.queues.remove(seq)
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
        builder = StepBuilder(step_id, self._capabilities)
        choice = choose_decode(
            self._reserve_for_decode(builder),
            self._capabilities.decode_batch_sizes,
            self._capabilities.decode_step_s,
        )
        if choice is not None:
            builder.set_decode(choice, self._propose_drafts(choice))
        self.prefill.plan(builder, choice)
        if builder.has_work:
            self.last_decision = builder.decision()
            self.counters.count(self.last_decision)
        elif not self._to_release:
            return None
        step = builder.finish(tuple(self._to_release))
        self._to_release.clear()
        return step

    def confirm(
        self, step: ScheduledStep, result: StepResult, num_sampled: Mapping[int, int]
    ) -> None:
        """Records that the runner has done a step: its samples are in, full blocks are published.

        Args:
            step: the step.
            result: what it took.
            num_sampled: tokens it gave, by sequence.
        """
        num_prefill_tokens = sum(chunk.num_tokens for chunk in step.plan.prefill)
        self.prefill.budget.observe(
            num_prefill_tokens, step.prefill_layer_share, result.prefill_time_s
        )
        layers = step.plan.prefill_layers
        if layers is not None and layers[1] < self._capabilities.num_layers:
            num_prefill_tokens = 0  # they count with their last layers
        num_tokens = num_prefill_tokens + sum(num_sampled.values())
        if num_tokens:
            self.counters.step_tokens.observe(num_tokens)
        for work in step.work:
            seq = work.seq
            seq.num_in_flight -= work.is_sampled
            num_accepted = 0
            if work.num_draft_tokens:
                num_accepted = num_sampled[seq.seq_id] - 1
                self._drafting = None
                self.counters.count_draft(num_accepted)
            is_own = seq.num_preemptions == work.num_preemptions
            if seq.state is SequenceState.FINISHED or not is_own:
                continue
            seq.num_computed_tokens += num_accepted
            self._blocks.publish(work, num_accepted)

    def restart_all(self, lost_plans: Iterable[StepPlan]) -> None:
        """Puts everything back in the queue, to be registered with the runner again.

        Args:
            lost_plans: plans whose results won't be used; how much of them was done isn't known.
        """
        self.queues.preempt_all()
        for plan in lost_plans:
            self._to_release += plan.release
        for seq in self.queues.waiting:
            seq.num_in_flight = 0
            if seq.is_started:
                seq.is_started = False
                self._to_release.append(seq.seq_id)
        self.prefill.restart()
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
        ready = [seq for seq in self.queues.running if seq.can_decode]
        return len(ready) == 1 and ready[0].explicit_batch is None and ready[0].num_in_flight > 0

    def _propose_drafts(self, choice: DecodeChoice) -> tuple[int, ...]:
        """Drafts for a sequence that decodes alone, and blocks for them if there are any free."""
        seq = choice.rows[0]
        if choice.num_ready > 1 or choice.batch_size > 1 or seq.num_in_flight > 0:
            return ()
        drafts = seq.propose_drafts(self._max_drafts)
        drafts = drafts[: self._blocks.extend_for_drafts(seq, len(drafts))]
        self._drafting = seq if drafts else None
        return drafts

    def _reserve_for_decode(self, builder: StepBuilder) -> list[Sequence]:
        """Gives decoding sequences blocks for their next token; returns those that have one."""
        ready: list[Sequence] = []
        held_up: set[ExplicitBatch] = set()
        for seq in [seq for seq in self.queues.running if seq.can_decode]:
            # Only lower ranks than the one visited are preempted, and none is visited twice.
            is_still_ready = not builder.preempted or seq.can_decode
            if is_still_ready and self._reserve(seq, builder):
                ready.append(seq)
            elif seq.explicit_batch is not None:
                held_up.add(seq.explicit_batch)  # a member lacks a block or was preempted just now
        return [seq for seq in ready if seq.explicit_batch not in held_up]

    def _reserve(self, seq: Sequence, builder: StepBuilder) -> bool:
        """Gets the block that the next token's K and V go to; False: not in this step."""
        num_missing = self._blocks.num_missing(seq)
        while num_missing > self._blocks.num_free:
            lowest = self.queues.running[-1]
            if lowest is seq:
                return False  # it keeps what it has and waits for another one to end
            self.queues.preempt(lowest)
            self.counters.num_preemptions += 1
            builder.preempted.append(lowest.seq_id)
        if num_missing > 0:
            self._blocks.extend(seq, num_missing)
        return True
