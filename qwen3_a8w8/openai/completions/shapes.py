"""Schemas of text completions; chunks and complete responses share one.

`stop_reason`, `token_ids` and `prompt_token_ids` are vLLM's, everything else is OpenAI's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from qwen3_a8w8.openai.progress import Timings, Usage
from qwen3_a8w8.openai.prompt_logprobs import PromptLogprobs
from qwen3_a8w8.openai.response import ResponseModel
from qwen3_a8w8.text.outputs import FinishReason, LogprobEntry


class CompletionLogprobs(ResponseModel):
    """Log-probabilities of new tokens; offsets in characters from the start of the text.

    The first token of an echoed prompt has none: null.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(ResponseModel):
    """Text of one choice, or its next delta."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobs | None = None


class CompletionResponse(ResponseModel):
    """A text completion, or one event of a streamed one."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str | None
    choices: list[CompletionChoice]
    usage: Usage | None = None
    timings: Timings | None = None


def make_completion_logprobs(
    entries: Sequence[LogprobEntry], first_offset: int
) -> CompletionLogprobs | None:
    """Log-probabilities in the format of text completions; None if there are none.

    Args:
        entries: of the new tokens.
        first_offset: characters before the generated text (an echoed prompt).
    """
    if not entries:
        return None
    return CompletionLogprobs(
        tokens=[entry.sampled.token for entry in entries],
        token_logprobs=[entry.sampled.logprob for entry in entries],
        top_logprobs=[_by_token(entry) for entry in entries],
        text_offset=[first_offset + entry.text_offset for entry in entries],
    )


def put_prompt_before(
    logprobs: CompletionLogprobs, first_token: str, entries: Sequence[LogprobEntry]
) -> None:
    """Inserts an echoed prompt before the new tokens.

    Args:
        logprobs: of the new tokens; changed in place.
        first_token: text of the prompt's first token, which has no log-probability.
        entries: of its other tokens.
    """
    prompt = make_completion_logprobs(entries, len(first_token))
    logprobs.tokens[:0] = [first_token, *(prompt.tokens if prompt else ())]
    logprobs.token_logprobs[:0] = [None, *(prompt.token_logprobs if prompt else ())]
    logprobs.top_logprobs[:0] = [None, *(prompt.top_logprobs if prompt else ())]
    logprobs.text_offset[:0] = [0, *(prompt.text_offset if prompt else ())]


def _by_token(entry: LogprobEntry) -> dict[str, float]:
    # Always includes the sampled token; of two tokens with the same text the likelier counts.
    tokens: dict[str, float] = {}
    for token in (*entry.top, entry.sampled):
        tokens.setdefault(token.token, token.logprob)
    return tokens
