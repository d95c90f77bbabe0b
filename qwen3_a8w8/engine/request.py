"""What goes into the engine and what comes out of it, in token ids.

Text, HTTP and Ray are other people's business; so is the way from a request to
a step (`scheduler.py`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

from qwen3_a8w8.engine.plan import TokenLogprobs
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.errors import EngineDeadError

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One prompt and how to go on from it.

    Attributes:
        prompt_token_ids: the prompt, at least one token.
        sampling: settings; `n` > 1 asks for that many sequences.
        output_token_ids: what an earlier run of this request has produced already; the
            continuation is the one that run would have had. Counts towards `max_tokens`.
    """

    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    output_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """News of one sequence after one step.

    Attributes:
        seq_id: the sequence.
        token_ids: new tokens, usually one; the token that ended it is included.
        logprobs: one entry per new token, None where the request didn't ask.
        finish_reason: "stop" (a stop token), "length", "abort", "error", or None while it
            goes on. Exactly one event of a sequence has a reason, and it is the last.
        stop_token_id: the last of `token_ids` if it ended the sequence; it is no part of the
            text.
        num_cached_tokens: prompt tokens that came from the prefix cache.
        error: why it failed, with finish_reason "error".
    """

    seq_id: int
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs | None, ...] = ()
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    num_cached_tokens: int = 0
    error: EngineDeadError | None = None


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
    """

    request_index: int
    index: int
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs | None, ...]
    finish_reason: FinishReason
    stop_token_id: int | None
    num_cached_tokens: int


def derive_seed(seed: int, index: int) -> int:
    """The seed of a request's sequence number `index`; number 0 keeps the request's own."""
    if index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1  # MAX_SEED has 63 bits
