"""What goes into the engine and what comes out of it, in token ids.

Knows neither text nor HTTP nor Ray, nor how a request becomes steps (`scheduling/`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from qwen3_a8w8.engine.plan import PromptToken, TokenLogprobs
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.errors import InvalidRequestError, Qwen3A8W8Error

FinishReason = Literal["stop", "length", "timeout", "abort", "error"]

MAX_PRIORITY = 2**31 - 1
MAX_CACHE_SALT = 256


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One prompt and how to go on from it.

    Attributes:
        prompt_token_ids: the prompt, at least one token.
        sampling: settings; `n` > 1 asks for that many sequences.
        output_token_ids: what an earlier run of this request has produced already; the
            continuation is the one that run would have had. Counts towards `max_tokens`.
        priority: lower values go first, equal ones in the order of arrival; from -(2**31 - 1)
            to 2**31 - 1. Also decides who loses its blocks when they run out.
        timeout_s: seconds from its arrival after which it ends with what it has, finish_reason
            "timeout"; looked at after each step, so it may take one step longer. None: no limit.
        cache_salt: KV blocks are shared only between requests with the same salt (1 to 256
            characters; None is a value like any other). A random one keeps a request out of
            the prefix cache.
        family: requests with the same prompt and the same family are several answers to one
            question: while they run they share its blocks also where prefix caching is off. None:
            with `n` > 1 its own sequences are one.
        num_engine_crashes: times in a row that an engine has crashed while it computed this
            request. After the second it runs in isolation until it has given a few tokens, so that
            others aren't blamed.
    """

    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    output_token_ids: tuple[int, ...] = ()
    priority: int = 0
    timeout_s: float | None = None
    cache_salt: str | None = None
    family: str | None = None
    num_engine_crashes: int = 0

    def check_options(self) -> None:
        """Checks what doesn't depend on a model.

        Raises:
            InvalidRequestError: `priority`, `timeout_s` or `cache_salt` has the wrong type or is
                outside its range; `param` names the field.
        """
        priority: object = self.priority
        if type(priority) is not int or abs(priority) > MAX_PRIORITY:
            raise InvalidRequestError(
                f"priority is {priority!r}, expected an integer from {-MAX_PRIORITY} to "
                f"{MAX_PRIORITY}; lower values go first",
                param="priority",
            )
        timeout_s: object = self.timeout_s
        if timeout_s is not None and not (
            isinstance(timeout_s, int | float)
            and not isinstance(timeout_s, bool)
            and math.isfinite(timeout_s)
            and timeout_s > 0
        ):
            raise InvalidRequestError(
                f"timeout_s is {timeout_s!r}, expected a positive number of seconds, or None",
                param="timeout_s",
            )
        salt: object = self.cache_salt
        if salt is not None and not (isinstance(salt, str) and 1 <= len(salt) <= MAX_CACHE_SALT):
            raise InvalidRequestError(
                f"cache_salt is {salt!r:.300}, expected a string of 1 to {MAX_CACHE_SALT} "
                "characters, or None",
                param="cache_salt",
            )


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """What a step, or several, have added to one sequence.

    Attributes:
        seq_id: the sequence.
        token_ids: new tokens, usually one, more where draft tokens were accepted; the one that
            ended it is included.
        logprobs: one entry per new token, None where the request didn't ask.
        finish_reason: "stop" (a stop token), "length", "timeout", "abort", "error", or None while
            it goes on. Exactly one event of a sequence has a reason, and it is the last.
        stop_token_id: the last of `token_ids` if it ended the sequence; it is no part of the
            text.
        num_cached_tokens: prompt tokens that came from the prefix cache.
        error: why it failed, with finish_reason "error": RequestFailedError for this request alone,
            likewise InvalidRequestError if its grammar cannot continue, or EngineDeadError with the
            whole engine.
        prompt_tokens: with the first token, if they were asked for: the prompt's but the first.
    """

    seq_id: int
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs | None, ...] = ()
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    num_cached_tokens: int = 0
    error: Qwen3A8W8Error | None = None
    prompt_tokens: tuple[PromptToken, ...] = ()

    @classmethod
    def merged(cls, events: Sequence[TokenEvent]) -> TokenEvent:
        """One event that says what `events` (of one sequence, in order, at least one) say."""
        last = events[-1]
        if len(events) == 1:
            return last
        return cls(
            seq_id=last.seq_id,
            token_ids=tuple(token_id for event in events for token_id in event.token_ids),
            logprobs=tuple(entry for event in events for entry in event.logprobs),
            finish_reason=last.finish_reason,
            stop_token_id=last.stop_token_id,
            num_cached_tokens=max(event.num_cached_tokens for event in events),
            error=last.error,
            prompt_tokens=next(
                (event.prompt_tokens for event in events if event.prompt_tokens), ()
            ),
        )


@dataclass(frozen=True, slots=True)
class SequenceOutput:
    """A whole finished sequence.

    Attributes:
        request_index: place of its request in the call.
        index: which of the request's `n` sequences this is.
        prompt_token_ids: the prompt.
        token_ids: everything generated, a stop token and resumed output included.
        logprobs: one entry per token generated in this run, None where not asked.
        finish_reason: why it ended.
        stop_token_id: the last token if it ended the sequence.
        num_cached_tokens: prompt tokens that came from the prefix cache.
        prompt_tokens: the prompt's tokens but the first with log-probabilities, if asked for.
    """

    request_index: int
    index: int
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs | None, ...]
    finish_reason: FinishReason
    stop_token_id: int | None
    num_cached_tokens: int
    prompt_tokens: tuple[PromptToken, ...] = ()


def derive_seed(seed: int, index: int) -> int:
    """The seed of a request's sequence number `index`; number 0 keeps the request's own."""
    if index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1  # MAX_SEED has 63 bits
