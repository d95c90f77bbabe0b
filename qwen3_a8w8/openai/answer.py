"""What every kind of answer has in common: the facts of its request, and two ways to write it.

A request that has been started is answered by a `Stream` or by a `Collector`; who feeds
them doesn't know which kind of request it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from qwen3_a8w8.openai.response import ResponseIdentity, ResponseModel, Usage, make_usage
from qwen3_a8w8.text.output import OutputDelta


@dataclass(frozen=True, slots=True)
class AnsweredRequest:
    """What an answer tells of its request.

    Attributes:
        identity: id, time and model that every chunk repeats.
        prompts: token ids of each prompt.
        num_per_prompt: answers to each (`n`); choice p * n + k is answer k to prompt p.
        has_usage: a stream ends with a usage chunk.
        has_continuous_usage: every chunk of a stream carries the usage so far.
        has_token_ids: the answer carries the ids of prompt and output.
        has_prompt_logprobs: a whole answer carries the log-probabilities of its prompt.
    """

    identity: ResponseIdentity
    prompts: tuple[tuple[int, ...], ...]
    num_per_prompt: int = 1
    has_usage: bool = False
    has_continuous_usage: bool = False
    has_token_ids: bool = False
    has_prompt_logprobs: bool = False

    @property
    def num_choices(self) -> int:
        """Answers in all."""
        return len(self.prompts) * self.num_per_prompt

    def prompt_of(self, index: int) -> list[int]:
        """Prompt that choice `index` answers."""
        return list(self.prompts[index // self.num_per_prompt])

    def usage_field(self, num_output_tokens: int) -> dict[str, Usage | None]:
        """The field `usage` of a chunk with choices, or nothing where there is to be none.

        With `include_usage` such chunks say `usage: null`.
        """
        if self.has_continuous_usage:
            return {"usage": make_usage(self.num_prompt_tokens, num_output_tokens)}
        return {"usage": None} if self.has_usage else {}

    @property
    def num_prompt_tokens(self) -> int:
        """Length of all prompts together."""
        return sum(map(len, self.prompts))


class Stream(Protocol):
    """Writes an answer as events."""

    def begin(self) -> Sequence[ResponseModel]:
        """Events before the first output."""
        ...

    def feed(self, index: int, delta: OutputDelta) -> Sequence[ResponseModel]:
        """Events for new output of choice `index`; none while its text is held back."""
        ...

    def finish(self, cached_tokens: int | None = None) -> Sequence[ResponseModel]:
        """The events after the last output.

        Raises:
            EngineDeadError: a choice has no finish reason yet; the output ended too early.
        """
        ...

    def fail(self, error: Exception, code: str | None) -> Sequence[ResponseModel]:
        """Events that tell of an error; none where the usual error frame does.

        Args:
            error: what happened.
            code: goes before the exception's own code.
        """
        ...


class Collector(Protocol):
    """Writes an answer as one response."""

    def feed(self, index: int, delta: OutputDelta) -> None:
        """Takes new output of choice `index`."""
        ...

    def response(self, cached_tokens: int | None = None) -> ResponseModel:
        """The whole response.

        Raises:
            EngineDeadError: a choice has no finish reason yet; the output ended too early.
        """
        ...


class Answer(Protocol):
    """The answer to one request, before it is known how the client wants it."""

    def stream(self) -> Stream:
        """As events."""
        ...

    def collector(self) -> Collector:
        """As one response."""
        ...
