"""What all responses share: identity, usage, and how they become JSON."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict


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

    @classmethod
    def for_chat(cls, model: str, system_fingerprint: str | None = None) -> ResponseIdentity:
        """A new chat completion's identity."""
        return cls(f"chatcmpl-{uuid.uuid4().hex}", int(time.time()), model, system_fingerprint)

    @classmethod
    def for_response(cls, model: str, system_fingerprint: str | None = None) -> ResponseIdentity:
        """A new response's identity, in the sense of the Responses API."""
        return cls(f"resp_{uuid.uuid4().hex}", int(time.time()), model, system_fingerprint)

    @classmethod
    def for_completion(cls, model: str, system_fingerprint: str | None = None) -> ResponseIdentity:
        """A new text completion's identity."""
        return cls(f"cmpl-{uuid.uuid4().hex}", int(time.time()), model, system_fingerprint)


class PromptTokensDetails(ResponseModel):
    """Tokens of the prompt that came from the prefix cache."""

    cached_tokens: int


class CompletionTokensDetails(ResponseModel):
    """Tokens of the output that stand in think blocks."""

    reasoning_tokens: int


class Usage(ResponseModel):
    """Token counts of one request, over all its prompts and choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None


def make_usage(
    prompt_tokens: int,
    completion_tokens: int,
    cached_tokens: int | None = None,
    reasoning_tokens: int = 0,
) -> Usage:
    """Usage of a finished request; details that are None or 0 are left out."""
    usage = Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
    )
    if cached_tokens is not None:
        usage.prompt_tokens_details = PromptTokensDetails(cached_tokens=cached_tokens)
    if reasoning_tokens:
        usage.completion_tokens_details = CompletionTokensDetails(reasoning_tokens=reasoning_tokens)
    return usage


class ModelCard(ResponseModel):
    """One served model in `GET /v1/models`."""

    id: str
    object: str
    created: int
    owned_by: str
    max_model_len: int


class ModelList(ResponseModel):
    """Body of `GET /v1/models`."""

    object: str
    data: list[ModelCard]


def make_model_card(name: str, *, created: int, max_model_len: int) -> ModelCard:
    """Card of a served model; `max_model_len` in tokens."""
    return ModelCard(
        id=name,
        object="model",
        created=created,
        owned_by="qwen3-a8w8",
        max_model_len=max_model_len,
    )


def make_model_list(cards: list[ModelCard]) -> ModelList:
    """Body of `GET /v1/models`."""
    return ModelList(object="list", data=cards)
