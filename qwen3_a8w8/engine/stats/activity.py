"""What the engine is doing right now, and did in the last minutes, for people who watch it.

`RecentActivity` is kept by the engine, bounded, at the cost of a few additions per step;
`EngineActivity` is a snapshot of it together with the active sequences. Counts over the whole
life of the engine are in `engine_stats.py`. Nothing in here is text or a token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from qwen3_a8w8.engine.plan import StepPlan
from qwen3_a8w8.engine.sequence import Sequence, SequenceState

NUM_STEPS = 64
"""Steps that are kept."""

NUM_SECONDS = 120
"""Seconds that are kept, those without a token left out."""

NUM_WAITING = 32
"""Waiting sequences that a snapshot lists; it counts all of them."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A step whose result is in.

    Attributes:
        step_id: of its plan.
        decode_batch_size: rows that its decode dispatch was compiled for; 0 without one.
        num_decode_rows: live rows in it.
        num_prefill_chunks: chunks of prompts in its prefill dispatch.
        num_prefill_tokens: their tokens.
        device_time_s: seconds that the device computed.
    """

    step_id: int
    decode_batch_size: int
    num_decode_rows: int
    num_prefill_chunks: int
    num_prefill_tokens: int
    device_time_s: float


@dataclass(slots=True)
class Second:
    """What one second of the engine's clock gave.

    Attributes:
        at_s: the second, by the engine's clock.
        num_tokens: generated tokens.
        num_first: sequences that got their first token.
        ttft_s: sum of their seconds from arrival to it.
        num_later: tokens after the first.
        itl_s: sum of the seconds between them and the token before.
    """

    at_s: int
    num_tokens: int = 0
    num_first: int = 0
    ttft_s: float = 0.0
    num_later: int = 0
    itl_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SequenceActivity:
    """A sequence that has not ended.

    Attributes:
        seq_id: its number in this engine, in the order of arrival.
        state: "decode", "prefill" (prompt positions are left to compute), or "waiting".
        row: its row in the last decode dispatch; None if it wasn't in it.
        num_prompt_tokens: tokens of the prompt.
        num_output_tokens: tokens generated so far, resumed ones included.
        num_computed_tokens: positions whose K and V are computed.
        num_to_prefill: positions to compute before it can decode; 0 while it waits.
        num_cached_tokens: prompt tokens that came from the prefix cache.
        num_resumed_tokens: output tokens that another engine had generated.
        num_preemptions: times that its blocks were taken away.
        num_blocks: KV blocks that it holds, shared ones included.
        age_s: seconds since its arrival.
    """

    seq_id: int
    state: str
    row: int | None
    num_prompt_tokens: int
    num_output_tokens: int
    num_computed_tokens: int
    num_to_prefill: int
    num_cached_tokens: int
    num_resumed_tokens: int
    num_preemptions: int
    num_blocks: int
    age_s: float


@dataclass(frozen=True, slots=True)
class EngineActivity:
    """A snapshot.

    Attributes:
        running: sequences with blocks, in the order of arrival.
        waiting: the next sequences to be admitted, at most `NUM_WAITING`.
        num_waiting: all waiting ones.
        num_waiting_tokens: their tokens.
        num_blocks_in_use: KV blocks held by sequences.
        num_blocks: KV blocks, the scratch block left out.
        block_size: tokens per KV block.
        num_finished: sequences ended so far, by finish reason.
        steps: the last steps, the oldest first.
        seconds: the last seconds that gave a token, the oldest first.
        now_s: the engine's clock.
        decode_reason: why the last step's decode dispatch has its size and rows.
        blocked: why no prompt, or not the first waiting one, went on in it, or "".
    """

    running: tuple[SequenceActivity, ...]
    waiting: tuple[SequenceActivity, ...]
    num_waiting: int
    num_waiting_tokens: int
    num_blocks_in_use: int
    num_blocks: int
    block_size: int
    num_finished: dict[str, int]
    steps: tuple[StepRecord, ...]
    seconds: tuple[Second, ...]
    now_s: float
    decode_reason: str
    blocked: str


class RecentActivity:
    """The last steps and seconds of an engine.

    Attributes:
        steps: the last ones, the oldest first.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.steps: deque[StepRecord] = deque(maxlen=NUM_STEPS)
        self._seconds: deque[Second] = deque(maxlen=NUM_SECONDS)
        self._last_rows: dict[int, int] = {}

    @property
    def now_s(self) -> float:
        """The engine's clock."""
        return self._clock()

    def count_step(self, plan: StepPlan, device_time_s: float) -> None:
        """Adds a step whose result is in."""
        rows = plan.decode.rows if plan.decode else ()
        if rows:
            self._last_rows = {work.seq_id: row for row, work in enumerate(rows)}
        self.steps.append(
            StepRecord(
                plan.step_id,
                plan.decode.batch_size if plan.decode else 0,
                len(rows),
                len(plan.prefill),
                sum(chunk.num_tokens for chunk in plan.prefill),
                device_time_s,
            )
        )

    def count_tokens(self, seq: Sequence, num_tokens: int, now_s: float) -> None:
        """Adds tokens of a sequence, whose `last_token_s` is still that of the token before."""
        if not num_tokens or seq.is_canary:
            return
        second = self._second(int(now_s))
        second.num_tokens += num_tokens
        if seq.last_token_s is not None:
            second.num_later += num_tokens
            second.itl_s += now_s - seq.last_token_s
        elif not seq.num_resumed_tokens:
            second.num_first += 1
            second.ttft_s += now_s - seq.arrived_s

    def seconds(self) -> tuple[Second, ...]:
        """Copies of the last `NUM_SECONDS` seconds, as far as they gave tokens."""
        first_s = int(self.now_s) - NUM_SECONDS
        return tuple(replace(second) for second in self._seconds if second.at_s > first_s)

    def describe(self, sequences: Iterable[Sequence]) -> tuple[SequenceActivity, ...]:
        """What active sequences are at, canaries left out, in the given order."""
        now_s = self._clock()
        return tuple(self._describe(seq, now_s) for seq in sequences if not seq.is_canary)

    def _second(self, at_s: int) -> Second:
        if not self._seconds or self._seconds[-1].at_s != at_s:
            self._seconds.append(Second(at_s))
        return self._seconds[-1]

    def _describe(self, seq: Sequence, now_s: float) -> SequenceActivity:
        is_waiting = seq.state is SequenceState.WAITING
        active = "prefill" if seq.is_prefilling else "decode"
        return SequenceActivity(
            seq_id=seq.seq_id,
            state="waiting" if is_waiting else active,
            row=None if is_waiting or seq.is_prefilling else self._last_rows.get(seq.seq_id),
            num_prompt_tokens=seq.num_prompt_tokens,
            num_output_tokens=seq.num_output_tokens,
            num_computed_tokens=seq.num_computed_tokens,
            num_to_prefill=0 if is_waiting else seq.prefill_end,
            num_cached_tokens=seq.num_cached_tokens,
            num_resumed_tokens=seq.num_resumed_tokens,
            num_preemptions=seq.num_preemptions,
            num_blocks=len(seq.block_ids),
            age_s=now_s - seq.arrived_s,
        )
