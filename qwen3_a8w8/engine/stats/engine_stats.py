"""What the engine has done, and its state right now, in numbers.

`StepCounters` only grow; `EngineStats` is a snapshot for metrics, logs and tests.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from qwen3_a8w8.engine.stats.request_stats import (
    Histogram,
    RequestStats,
    queue_time_histogram,
    step_token_histogram,
)


@dataclass(frozen=True, slots=True)
class Decision:
    """Why the last step was composed as it was.

    Attributes:
        step_id: of its plan.
        num_prefill_tokens: prompt tokens that its chunks computed; 0 while layers are left.
        num_prefill_chunks: its chunks.
        prefill_layers: layers [begin, end) that they went through.
        decode_batch_size: size of its decode dispatch, 0 without one.
        num_decode_rows: live rows in it.
        num_draft_tokens: draft tokens that it checks.
        num_ready: sequences that could have decoded.
        decode_reason: why that size and those rows.
        preempted: sequences that were preempted for it.
        blocked: why no prompt, or not the first waiting one, went on in it, or "".
    """

    step_id: int
    num_prefill_tokens: int
    num_prefill_chunks: int
    prefill_layers: tuple[int, int]
    decode_batch_size: int
    num_decode_rows: int
    num_draft_tokens: int
    num_ready: int
    decode_reason: str
    preempted: tuple[int, ...]
    blocked: str


@dataclass(slots=True)
class StepCounters:
    """Totals since the engine was made.

    Attributes:
        num_steps: plans made, those that only release left out.
        num_prefill_tokens: positions computed by prefill, recomputation included.
        num_prefix_query_tokens: prompt tokens looked up in the prefix cache.
        num_prefix_hit_tokens: those of them that were found.
        num_preemptions: times a sequence was preempted.
        queue_times: seconds that sequences had waited when they were first admitted.
        num_failed_steps: steps that the runner couldn't carry out.
        num_decode_rows: live rows over all decode dispatches.
        decode_batches: decode dispatches by batch size.
        step_tokens: tokens of each step: prompt positions computed and tokens generated.
        num_drafts: times that a sequence had draft tokens checked.
        num_draft_tokens: draft tokens that were checked.
        num_accepted_draft_tokens: those of them that were accepted, each without a step of its own.
        num_accepted_by_position: the same by their place in the draft, as far as any was accepted.
        num_following_steps: steps done that came right after another, with work in between.
        following_device_time_s: seconds that the device computed in them.
        host_gap_s: seconds that the device waited for them.
    """

    num_steps: int = 0
    num_prefill_tokens: int = 0
    num_prefix_query_tokens: int = 0
    num_prefix_hit_tokens: int = 0
    num_preemptions: int = 0
    queue_times: Histogram = field(default_factory=queue_time_histogram)
    num_failed_steps: int = 0
    num_decode_rows: int = 0
    decode_batches: dict[int, int] = field(default_factory=dict)
    step_tokens: Histogram = field(default_factory=step_token_histogram)
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    num_accepted_by_position: list[int] = field(default_factory=list)
    num_following_steps: int = 0
    following_device_time_s: float = 0.0
    host_gap_s: float = 0.0

    @property
    def prefix_hit_rate(self) -> float:
        """Share of the prompt tokens that the prefix cache gave; 0.0 before the first."""
        total = self.num_prefix_query_tokens
        return self.num_prefix_hit_tokens / total if total else 0.0

    def copy(self) -> StepCounters:
        """A snapshot."""
        return replace(
            self,
            decode_batches=dict(self.decode_batches),
            queue_times=self.queue_times.copy(),
            step_tokens=self.step_tokens.copy(),
            num_accepted_by_position=list(self.num_accepted_by_position),
        )

    def count(self, decision: Decision) -> None:
        """Adds a step."""
        self.num_steps += 1
        self.num_draft_tokens += decision.num_draft_tokens
        self.num_prefill_tokens += decision.num_prefill_tokens
        if decision.decode_batch_size:
            num_before = self.decode_batches.get(decision.decode_batch_size, 0)
            self.decode_batches[decision.decode_batch_size] = num_before + 1
            self.num_decode_rows += decision.num_decode_rows

    def count_start(self, queue_time_s: float, num_tokens: int, num_cached_tokens: int) -> None:
        """Adds a sequence's first admission.

        Args:
            queue_time_s: seconds it has waited.
            num_tokens: its tokens.
            num_cached_tokens: those of them that the prefix cache had.
        """
        self.queue_times.observe(queue_time_s)
        self.num_prefix_query_tokens += num_tokens
        self.num_prefix_hit_tokens += num_cached_tokens

    def count_draft(self, num_accepted: int) -> None:
        """Adds a sequence's draft tokens that a step has checked: the first ones were accepted."""
        self.num_drafts += 1
        self.num_accepted_draft_tokens += num_accepted
        by_position = self.num_accepted_by_position
        by_position += [0] * (num_accepted - len(by_position))
        for position in range(num_accepted):
            by_position[position] += 1

    def count_gap(self, device_time_s: float, idle_s: float) -> None:
        """Adds a step that followed another one without a pause in the work."""
        self.num_following_steps += 1
        self.following_device_time_s += device_time_s
        self.host_gap_s += idle_s


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot of the engine.

    Attributes:
        num_waiting: sequences without blocks.
        num_waiting_tokens: their tokens.
        num_running: sequences with blocks.
        num_blocks_in_use: KV blocks held by sequences; 0 when idle.
        num_blocks_free: KV blocks that can be had, cached ones included.
        block_size: tokens per KV block.
        num_active_rows: live rows of the last decode dispatch.
        num_finished: sequences ended so far, by finish reason.
        decode_fill_ratio: live rows / rows over all decode dispatches, 0.0 before the first.
        device_time_s: seconds that the device computed.
        prefill_token_s: seconds per prompt token by the last prefill dispatches; 0.0: unknown.
        counters: totals.
        requests: how long requests took, and how long they are.
        last_decision: why the last step was composed as it was.
    """

    num_waiting: int
    num_waiting_tokens: int
    num_running: int
    num_blocks_in_use: int
    num_blocks_free: int
    block_size: int
    num_active_rows: int
    num_finished: dict[str, int]
    decode_fill_ratio: float
    device_time_s: float
    prefill_token_s: float
    counters: StepCounters
    requests: RequestStats
    last_decision: Decision | None

    @property
    def last_batch_size(self) -> int:
        """Rows that the last step's decode dispatch was compiled for; 0 without one."""
        return 0 if self.last_decision is None else self.last_decision.decode_batch_size

    @property
    def num_blocks(self) -> int:
        """KV blocks, the scratch block left out."""
        return self.num_blocks_in_use + self.num_blocks_free

    @property
    def prefix_hit_rate(self) -> float:
        """Share of the prompt tokens that the prefix cache gave."""
        return self.counters.prefix_hit_rate
