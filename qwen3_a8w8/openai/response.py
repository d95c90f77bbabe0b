"""What all responses share: identity, how they become JSON, and who writes them."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.text.outputs import OutputDelta


class ResponseModel(BaseModel):
    """Base of everything sent.

    Fields that were never set don't appear in the JSON; a field set to None appears as null.
    That difference is part of the format (`finish_reason: null`, but no `usage` at all).
    """

    model_config = ConfigDict(extra="forbid")

    @property
    def event_name(self) -> str | None:
        """Name of the event in a stream, where its kind has names."""
        return None

    def to_json(self) -> str:
        """The JSON text, on one line."""
        return self.model_dump_json(exclude_unset=True)


@dataclass(frozen=True, slots=True)
class ResponseIdentity:
    """What all chunks of one response repeat.

    Attributes:
        id: e.g. `chatcmpl-...`.
        created: Unix time in seconds.
        model: name of the model as the client knows it.
        system_fingerprint: names the configuration that answers, or None.
    """

    id: str
    created: int
    model: str
    system_fingerprint: str | None = None

    def fields(self) -> dict[str, Any]:
        """The fields of a chunk or response."""
        return {
            "id": self.id,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
        }

    @classmethod
    def new(cls, prefix: str, model: str) -> ResponseIdentity:
        """A new response's identity.

        Args:
            prefix: of its id, which tells the API.
            model: as the client knows it.
        """
        return cls(f"{prefix}{uuid.uuid4().hex}", int(time.time()), model)


@dataclass(frozen=True, slots=True)
class ResponseContext:
    """What a response repeats of its request, and what it contains.

    Attributes:
        identity: id, time and model that every chunk repeats.
        prompts: token ids of each prompt.
        num_per_prompt: answers to each (`n`); choice p * n + k is answer k to prompt p.
        is_streamed: the client sees the events; otherwise it gets `ResponseWriter.whole`.
        has_usage: the last event has the usage; always where the response isn't streamed.
        has_continuous_usage: every chunk of a stream carries the usage so far.
        has_token_ids: the response carries the ids of prompt and output.
        sampling: effective sampling parameters, where the response repeats them.
        has_prompt_logprobs: a whole response carries the log-probabilities of its prompt.
        has_output: False: the request asked for no output (`max_tokens` 0). The engine generates a
            token all the same, which the response leaves out.
        has_timings: every event carries llama.cpp's `timings`.
        started_s: when the request came, by `time.perf_counter`.
    """

    identity: ResponseIdentity
    prompts: tuple[tuple[int, ...], ...]
    num_per_prompt: int = 1
    is_streamed: bool = True
    has_usage: bool = False
    has_continuous_usage: bool = False
    has_token_ids: bool = False
    has_prompt_logprobs: bool = False
    has_output: bool = True
    has_timings: bool = False
    sampling: SamplingParams | None = None
    started_s: float = field(default_factory=time.perf_counter)

    @property
    def num_choices(self) -> int:
        """Answers in all."""
        return len(self.prompts) * self.num_per_prompt

    def prompt_of(self, index: int) -> list[int]:
        """Prompt that choice `index` answers."""
        return list(self.prompts[index // self.num_per_prompt])

    def stop_reason_field(
        self, finish_reason: str | None, stop_reason: str | int | None
    ) -> dict[str, str | int]:
        """The field `stop_reason` of a choice that has ended: vLLM's, left out where that is null.

        It is the stop string, or the id among the request's `stop_token_ids`, that ended the text.
        """
        ids = self.sampling.stop_token_ids if self.sampling else ()
        is_shown = isinstance(stop_reason, str) or stop_reason in ids
        if finish_reason is None or stop_reason is None or not is_shown:
            return {}
        return {"stop_reason": stop_reason}

    @property
    def num_prompt_tokens(self) -> int:
        """Length of all prompts together."""
        return sum(map(len, self.prompts))


Event = TypeVar("Event", bound=ResponseModel)
Whole = TypeVar("Whole", bound=ResponseModel)


class ResponseWriter(ABC, Generic[Event, Whole]):
    """Writes the response to one request: as events, or folded from them as a whole.

    `begin`, then `feed` for every output, then `finish`, or `fail` at any point. Who calls them
    doesn't know which kind of request it was.
    """

    def begin(self) -> Sequence[Event]:
        """Events before the first output."""
        return ()

    @abstractmethod
    def feed(self, index: int, delta: OutputDelta) -> Sequence[Event]:
        """Events for new output of choice `index`; none while its text is held back."""

    @abstractmethod
    def finish(self) -> Sequence[Event]:
        """The events after the last output.

        Raises:
            EngineDeadError: a choice has no finish reason yet; the output ended too early.
        """

    def fail(self, error: Exception, code: str | None) -> Sequence[Event]:
        """Events that report an error; none where the usual error frame does.

        Args:
            error: what happened.
            code: goes before the exception's own code.
        """
        del error, code
        return ()

    @abstractmethod
    def whole(self, events: Sequence[Event]) -> Whole:
        """The response that isn't streamed.

        Args:
            events: all that `begin`, `feed` and `finish` have returned, in order.
        """
