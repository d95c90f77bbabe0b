"""What `LLM` gives back, and how it is gathered from the engine's events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from qwen3_a8w8.engine.request import EngineRequest, TokenEvent
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.text.output import LogprobEntry, OutputDelta, OutputProcessor


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer to a prompt.

    Attributes:
        index: 0 to n - 1.
        token_ids: generated ids, a stop token included.
        text: their text, without stop tokens and stop strings.
        finish_reason: "stop" or "length".
        logprobs: one entry per id, or None if they weren't asked for.
    """

    index: int
    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    logprobs: tuple[LogprobEntry, ...] | None


@dataclass(frozen=True, slots=True)
class GenerationOutput:
    """The answers to one prompt; the fields of the first are at hand directly.

    Attributes:
        prompt_token_ids: the prompt.
        completions: `n` answers.
        num_cached_tokens: prompt tokens that came from the prefix cache.
        prompt_logprobs: one entry per token of the prompt but the first, or None if they weren't
            asked for.
    """

    prompt_token_ids: tuple[int, ...]
    completions: tuple[Completion, ...]
    num_cached_tokens: int
    prompt_logprobs: tuple[LogprobEntry, ...] | None = None

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Of the first answer."""
        return self.completions[0].token_ids

    @property
    def text(self) -> str:
        """Of the first answer."""
        return self.completions[0].text

    @property
    def finish_reason(self) -> str:
        """Of the first answer."""
        return self.completions[0].finish_reason

    @property
    def logprobs(self) -> tuple[LogprobEntry, ...] | None:
        """Of the first answer."""
        return self.completions[0].logprobs


class OutputCollector:
    """Feeds the engine's events to one processor per sequence.

    Args:
        requests: what the engine runs.
        make_processor: gives the text side of one sequence.
    """

    def __init__(
        self,
        requests: Sequence[EngineRequest],
        make_processor: Callable[[SamplingParams], OutputProcessor],
    ) -> None:
        self._requests = requests
        self._processors = [
            [make_processor(request.sampling) for _ in range(request.sampling.n)]
            for request in requests
        ]
        self._deltas: list[list[list[OutputDelta]]] = [
            [[] for _ in range(request.sampling.n)] for request in requests
        ]
        self._num_cached = [0] * len(requests)

    def take(self, request_index: int, index: int, event: TokenEvent) -> bool:
        """Engine hook; True when a stop string has ended the sequence."""
        request = self._requests[request_index]
        delta = feed_event(self._processors[request_index][index], request.sampling, event)
        self._deltas[request_index][index].append(delta)
        self._num_cached[request_index] = event.num_cached_tokens
        return delta.is_stopped

    def outputs(self) -> list[GenerationOutput]:
        """Everything, in the order of the requests."""
        return [
            GenerationOutput(
                tuple(request.prompt_token_ids),
                tuple(
                    _completion(index, deltas, request.sampling)
                    for index, deltas in enumerate(per_sequence)
                ),
                num_cached,
                _prompt_logprobs(per_sequence[0], request.sampling),
            )
            for request, per_sequence, num_cached in zip(
                self._requests, self._deltas, self._num_cached, strict=True
            )
        ]


def feed_event(
    processor: OutputProcessor, sampling: SamplingParams, event: TokenEvent
) -> OutputDelta:
    """What an event of the engine adds to the text.

    Raises:
        Qwen3A8W8Error: the event's own, if the sequence has failed.
    """
    if event.error is not None:
        raise event.error
    reason = event.finish_reason
    return processor.feed(
        event.token_ids,
        event.logprobs if sampling.logprobs is not None else None,
        # Like clients of the API, the text side knows two ways to end: a deadline is a limit.
        "length" if reason == "timeout" else reason if reason in ("stop", "length") else None,
        event.prompt_tokens,
    )


def _completion(index: int, deltas: Sequence[OutputDelta], sampling: SamplingParams) -> Completion:
    has_logprobs = sampling.logprobs is not None
    return Completion(
        index=index,
        token_ids=tuple(i for delta in deltas for i in delta.token_ids),
        text="".join(delta.text for delta in deltas),
        finish_reason=next(d.finish_reason for d in deltas if d.finish_reason is not None),
        logprobs=tuple(e for delta in deltas for e in delta.logprobs) if has_logprobs else None,
    )


def _prompt_logprobs(
    deltas: Sequence[OutputDelta], sampling: SamplingParams
) -> tuple[LogprobEntry, ...] | None:
    if sampling.prompt_logprobs is None:
        return None
    return next((delta.prompt_logprobs for delta in deltas if delta.prompt_logprobs), ())
