"""What goes into a step's one prefill dispatch, how much of it, and who is admitted for it.

In the order of rank: chunks of running sequences first, then of waiting ones that are
admitted while there is room. A dispatch may take several steps, a group of layers in each.

A step is a prefill dispatch and then a decode dispatch, so what a running sequence waits
longer for its next token is the time of one prefill dispatch. That time is predicted from the
last ones and kept to a target. Larger chunks cost less per token, so measuring, dividing and
measuring again settles where the time of a chunk equals the target: there is no model of the
device in here.
"""

from __future__ import annotations

from collections.abc import Callable

from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.engine.plan import RunnerCapabilities
from qwen3_a8w8.engine.scheduling.queues import Queues, SequenceBlocks
from qwen3_a8w8.engine.scheduling.step_builder import DecodeChoice, ScheduledChunk, StepBuilder
from qwen3_a8w8.engine.sequence import Sequence
from qwen3_a8w8.engine.stats.engine_stats import StepCounters

MIN_TOKENS = 16
"""Smallest chunk: below, a dispatch costs about the same however few tokens it has."""

_SMOOTHING = 0.5


class PrefillBudget:
    """The limit on a prefill dispatch, by the time it may take."""

    def __init__(
        self, chunk_tokens: int, max_stall_s: float | None, token_s: float, layer_share: float
    ) -> None:
        """Makes a budget.

        Args:
            chunk_tokens: most tokens in one prefill dispatch, in any case.
            max_stall_s: target for its time beside decoding sequences; None: no bound.
            token_s: seconds per token as measured at warm-up; 0.0: not measured.
            layer_share: part of the layers that one dispatch goes through, in (0, 1].
        """
        self._chunk_tokens = chunk_tokens
        self._max_stall_s = max_stall_s
        self._token_s = token_s
        self._layer_share = layer_share

    @property
    def token_s(self) -> float:
        """Seconds that a token takes through all layers, by the last dispatches; 0.0: unknown."""
        return self._token_s

    def observe(self, num_tokens: int, layer_share: float, prefill_time_s: float) -> None:
        """Adds a measured dispatch.

        Args:
            num_tokens: its tokens.
            layer_share: part of the layers it went through.
            prefill_time_s: seconds it took; 0.0: not measured.
        """
        if num_tokens == 0 or prefill_time_s <= 0.0:
            return
        measured = prefill_time_s / (num_tokens * layer_share)
        if self._token_s <= 0.0:
            self._token_s = measured
        else:
            self._token_s += _SMOOTHING * (measured - self._token_s)

    def num_tokens(self, *, is_decoding: bool) -> int:
        """Most tokens of the next dispatch, given whether sequences decode beside it."""
        if not is_decoding or self._max_stall_s is None or self._token_s <= 0.0:
            return self._chunk_tokens
        affordable = int(self._max_stall_s / (self._token_s * self._layer_share))
        return min(max(affordable, MIN_TOKENS), self._chunk_tokens)


class PrefillPlanner:
    """Fills prefill dispatches; remembers one that has layers left.

    Attributes:
        budget: how many prompt tokens a step may have.
    """

    def __init__(
        self,
        capabilities: RunnerCapabilities,
        config: EngineConfig,
        queues: Queues,
        blocks: SequenceBlocks,
        counters: StepCounters,
        clock: Callable[[], float],
    ) -> None:
        self._queues = queues
        self._blocks = blocks
        self._counters = counters
        self._clock = clock
        self._max_running_requests = config.max_running_requests
        self._num_layers = capabilities.num_layers
        self._layers_per_dispatch = min(
            config.prefill_layers_per_dispatch or self._num_layers, self._num_layers
        )
        stall_ms = config.max_decode_stall_ms
        self.budget = PrefillBudget(
            capabilities.prefill_chunk_tokens,
            None if stall_ms is None else stall_ms / 1e3,
            capabilities.prefill_token_s,
            self._layers_per_dispatch / self._num_layers,
        )
        self._open_chunks: list[ScheduledChunk] = []  # through the first layers, not yet the last
        self._next_layer = 0
        self._num_steps_owed = 0

    def restart(self) -> None:
        """Drops the dispatch that is on its way."""
        self._open_chunks = []
        self._num_steps_owed = 0

    def plan(self, builder: StepBuilder, choice: DecodeChoice | None) -> None:
        """Fills the step's prefill dispatch, unless decoding sequences are owed a step first.

        Args:
            builder: the step; its decode rows are chosen.
            choice: those rows, or None without any.
        """
        if choice is not None and self._num_steps_owed > 0:
            self._num_steps_owed -= 1
            builder.blocked = (
                "the last chunk delayed decoding sequences that haven't had their turn"
            )
            return
        self._num_steps_owed = 0
        self._open_chunks = [entry for entry in self._open_chunks if entry.is_wanted]
        if self._open_chunks:
            builder.continue_chunks(self._open_chunks)
            builder.blocked = "a prefill dispatch has layers left"
        else:
            self._next_layer = 0
            builder.limit_prefill(self.budget.num_tokens(is_decoding=choice is not None))
            for seq in self._queues.running:
                if seq.is_prefilling:
                    builder.add_chunk(seq)
            if builder.preempted:
                builder.blocked = "running sequences were preempted in this step"
            else:
                self._admit(builder)
        if not builder.chunks:
            return
        end = min(self._next_layer + self._layers_per_dispatch, self._num_layers)
        builder.set_prefill_layers(self._next_layer, end)
        self._next_layer = end
        self._open_chunks = [] if end == self._num_layers else builder.chunks
        if choice is not None:
            # Rows that take turns must all have had one before the next chunk.
            self._num_steps_owed = -(-choice.num_ready // choice.batch_size) - 1

    def _admit(self, builder: StepBuilder) -> None:
        """Moves sequences from the queue to the running set, in order, while all limits allow."""
        waiting, running = self._queues.waiting, self._queues.running
        if self._queues.isolated is not None:
            builder.blocked = "one sequence is retried in isolation, to find the cause of a failure"
        while (first := self._queues.first_waiting) is not None and builder.has_prefill_room:
            explicit_batch = first.explicit_batch
            group = (
                [seq for seq in waiting if seq.explicit_batch is explicit_batch]
                if explicit_batch
                else [first]
            )
            if any(seq.num_in_flight for seq in group):
                builder.blocked = "it was preempted with a sample in flight that isn't known yet"
                return
            if not explicit_batch and self._blocks.is_being_computed(first, running):
                builder.blocked = "a running sequence is computing its prefix; it waits to share it"
                return
            num_places = self._max_running_requests - len(running)
            if len(group) > num_places:
                builder.blocked = f"needs {len(group)} running places, {num_places} are free"
                return
            if not self._blocks.admit(group, running):
                builder.blocked = (
                    f"its prompt doesn't fit the {self._blocks.num_free} free KV blocks"
                )
                return
            for seq in group:
                self._queues.admit(seq)
                self._begin(seq, builder)

    def _begin(self, seq: Sequence, builder: StepBuilder) -> None:
        num_cached_tokens = self._blocks.num_cached_tokens(seq)
        seq.num_computed_tokens = num_cached_tokens
        seq.prefill_end = len(seq.token_ids)
        if not seq.is_started:
            seq.is_started = True
            builder.start(seq)
        if seq.started_s is None and not seq.is_canary:
            seq.started_s = self._clock()
            seq.num_cached_tokens = min(num_cached_tokens, seq.num_prompt_tokens)
            self._counters.count_start(
                seq.started_s - seq.arrived_s, seq.prefill_end, num_cached_tokens
            )
        builder.add_chunk(seq)
