"""What requests have met with: waiting, latencies, lengths.

Every sequence counts as a request. Times are the engine's: from the moment in which it takes a
request to the moment in which a step's result is in; tokenizer, HTTP and network come on top.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from qwen3_a8w8.engine.histogram import Histogram, one_two_five
from qwen3_a8w8.engine.sequence import Sequence

_LATENCIES_S = one_two_five(0.001, 1000)
_TOKEN_LATENCIES_S = one_two_five(0.0005, 10)
_LENGTHS = one_two_five(1, 200_000)


def _histogram(bounds: tuple[float, ...]) -> Callable[[], Histogram]:
    return lambda: Histogram(bounds)


@dataclass(slots=True)
class RequestStats:
    """Histograms since the engine was made.

    A sequence that goes on from what another engine has generated had its beginning there: it
    has no part in `ttft_s` and `e2e_s`. One that ended by an error counts in none of those that
    are told at the end.

    Attributes:
        ttft_s: seconds from arrival to the first token.
        itl_s: seconds between tokens; the tokens of one step share its time evenly.
        tpot_s: mean of the same over a sequence that had two tokens at least.
        e2e_s: seconds from arrival to the end.
        prompt_tokens: of a sequence that has ended.
        generation_tokens: likewise, resumed ones included.
        num_generated_tokens: tokens given out.
    """

    ttft_s: Histogram = field(default_factory=_histogram(_LATENCIES_S))
    itl_s: Histogram = field(default_factory=_histogram(_TOKEN_LATENCIES_S))
    tpot_s: Histogram = field(default_factory=_histogram(_TOKEN_LATENCIES_S))
    e2e_s: Histogram = field(default_factory=_histogram(_LATENCIES_S))
    prompt_tokens: Histogram = field(default_factory=_histogram(_LENGTHS))
    generation_tokens: Histogram = field(default_factory=_histogram(_LENGTHS))
    num_generated_tokens: int = 0

    def count_tokens(self, seq: Sequence, num_tokens: int, now_s: float) -> None:
        """Adds tokens that a step has given a sequence."""
        if not num_tokens or seq.is_probe:
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
        num_later = seq.num_output_tokens - seq.num_resumed_tokens - 1
        if num_later > 0 and seq.first_token_s is not None and seq.last_token_s is not None:
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
