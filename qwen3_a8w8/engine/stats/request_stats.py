"""How long requests wait and take, and how long they are, as histograms.

Every sequence counts as a request. Times are the engine's: from the moment in which it takes a
request to the moment in which a step's result is in; tokenizer, HTTP and network come on top.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

from qwen3_a8w8.engine.sequence import Sequence


def one_two_five(smallest: float, largest: float) -> tuple[float, ...]:
    """The bounds 1, 2, 5, 10, 20 ... times `smallest`, up to `largest`."""
    bounds = [smallest]
    while bounds[-1] < largest:
        step = (2.0, 2.5, 2.0)[(len(bounds) - 1) % 3]
        bounds.append(float(f"{bounds[-1] * step:.6g}"))
    return tuple(bounds)


@dataclass(slots=True)
class Histogram:
    """Counts by range.

    Attributes:
        bounds: upper bounds of the ranges, ascending; a bound belongs to its range.
        counts: values in each range; the last one counts those above all bounds.
        total: sum of the values.
    """

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        """Makes room for the counts."""
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    @property
    def count(self) -> int:
        """How many values there are."""
        return sum(self.counts)

    def observe(self, value: float, count: int = 1) -> None:
        """Adds a value, `count` times."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    def copy(self) -> Histogram:
        """One that doesn't grow with this one."""
        return Histogram(self.bounds, list(self.counts), self.total)

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """(bound, values up to it), the last bound being infinite."""
        so_far = 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            so_far += count
            yield bound, so_far


_LATENCIES_S = one_two_five(0.001, 1000)
_TOKEN_LATENCIES_S = one_two_five(0.0005, 10)
_LENGTHS = one_two_five(1, 200_000)


def _histogram(bounds: tuple[float, ...]) -> Callable[[], Histogram]:
    return lambda: Histogram(bounds)


@dataclass(slots=True)
class RequestStats:
    """Histograms since the engine was made.

    A sequence that continues what another engine has generated started there: it isn't counted in
    `ttft_s`, `e2e_s`, `prefill_s`, `decode_s` and `inference_s`. One that ended by an error counts
    in none of those that are observed at the end.

    Attributes:
        ttft_s: seconds from arrival to the first token.
        itl_s: seconds between tokens; the tokens of one step share its time evenly.
        tpot_s: mean of the same over a sequence that had two tokens at least.
        e2e_s: seconds from arrival to the end.
        prefill_s: seconds from the first blocks to the first token.
        decode_s: seconds from the first token to the last.
        inference_s: both together.
        prompt_tokens: of a sequence that has ended.
        generation_tokens: likewise, resumed ones included.
        max_tokens: that a request asked for; not of those that named none.
        num_generated_tokens: tokens given out.
    """

    ttft_s: Histogram = field(default_factory=_histogram(_LATENCIES_S))
    itl_s: Histogram = field(default_factory=_histogram(_TOKEN_LATENCIES_S))
    tpot_s: Histogram = field(default_factory=_histogram(_TOKEN_LATENCIES_S))
    e2e_s: Histogram = field(default_factory=_histogram(_LATENCIES_S))
    prefill_s: Histogram = field(default_factory=_histogram(_LATENCIES_S))
    decode_s: Histogram = field(default_factory=_histogram(_LATENCIES_S))
    inference_s: Histogram = field(default_factory=_histogram(_LATENCIES_S))
    prompt_tokens: Histogram = field(default_factory=_histogram(_LENGTHS))
    generation_tokens: Histogram = field(default_factory=_histogram(_LENGTHS))
    max_tokens: Histogram = field(default_factory=_histogram(_LENGTHS))
    num_generated_tokens: int = 0

    def count_tokens(self, seq: Sequence, num_tokens: int, now_s: float) -> None:
        """Adds tokens that a step has given a sequence."""
        if not num_tokens or seq.is_canary:
            return
        self.num_generated_tokens += num_tokens
        if seq.last_token_s is not None:
            self.itl_s.observe((now_s - seq.last_token_s) / num_tokens, num_tokens)
        else:
            seq.first_token_s = now_s
            if not seq.num_resumed_tokens:
                self.ttft_s.observe(now_s - seq.arrived_s)
        seq.last_token_s = now_s

    def count_end(self, seq: Sequence, now_s: float) -> None:
        """Adds a sequence that has ended by itself or was given up by its client."""
        if not seq.num_resumed_tokens:
            self.e2e_s.observe(now_s - seq.arrived_s)
        self.prompt_tokens.observe(seq.num_prompt_tokens)
        self.generation_tokens.observe(seq.num_output_tokens)
        if seq.sampling.max_tokens is not None:
            self.max_tokens.observe(seq.sampling.max_tokens)
        if seq.first_token_s is None or seq.last_token_s is None:
            return
        if seq.started_s is not None and not seq.num_resumed_tokens:
            self.prefill_s.observe(seq.first_token_s - seq.started_s)
            self.decode_s.observe(seq.last_token_s - seq.first_token_s)
            self.inference_s.observe(seq.last_token_s - seq.started_s)
        num_later = seq.num_output_tokens - seq.num_resumed_tokens - 1
        if num_later > 0:
            self.tpot_s.observe((seq.last_token_s - seq.first_token_s) / num_later)

    def copy(self) -> RequestStats:
        """A snapshot."""
        histograms: dict[str, Any] = {
            part.name: value.copy()
            for part in fields(self)
            if isinstance(value := getattr(self, part.name), Histogram)
        }
        return replace(self, **histograms)


def queue_time_histogram() -> Histogram:
    """For seconds from arrival to the first blocks."""
    return Histogram(_LATENCIES_S)


def step_token_histogram() -> Histogram:
    """For tokens per step."""
    return Histogram(tuple(float(1 << power) for power in range(15)))
