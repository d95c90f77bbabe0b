"""Who may enter the queue, and what a request becomes there: ids, seeds, stop tokens, lengths.

Everything that could make a request impossible is found here, before it is queued, so that
nothing that waits can block those behind it for ever. What comes out can be scheduled as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Many
from dataclasses import replace

from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.engine.plan import RunnerCapabilities
from qwen3_a8w8.engine.request import EngineRequest, derive_seed
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.engine.sequence import ExplicitBatch, Sequence
from qwen3_a8w8.errors import (
    ContextLengthError,
    InvalidRequestError,
    UnsupportedBatchSizeError,
)


class SequenceFactory:
    """Makes sequences with ascending ids; the state is the next id."""

    def __init__(
        self,
        capabilities: RunnerCapabilities,
        config: EngineConfig,
        draw_seed: Callable[[], int],
    ) -> None:
        self._capabilities = capabilities
        self._config = config
        self._draw_seed = draw_seed
        self._next_seq_id = 0

    def sequences_of(self, request: EngineRequest) -> list[Sequence]:
        """The `n` sequences of a request, with seeds derived from the request's.

        Raises:
            InvalidRequestError: see `admission.check_request`.
            ContextLengthError: see there.
        """
        check_request(request, self._capabilities)
        max_tokens = output_limit(request, self._capabilities)
        seed = self._seed_of(request)
        if request.sampling.n > 1 and request.family is None:
            request = replace(request, family=f"the sequences from {self._next_seq_id} on")
        return [
            self._make(request, derive_seed(seed, index), max_tokens, None)
            for index in range(request.sampling.n)
        ]

    def sequences_of_batch(self, requests: list[EngineRequest]) -> list[Sequence]:
        """The sequences of an explicit batch, tied together if they are several.

        Raises:
            UnsupportedBatchSizeError: see `admission.check_batch`.
            InvalidRequestError: see there.
            ContextLengthError: see there.
        """
        check_batch(requests, self._capabilities, self._config)
        if len(requests) == 1:
            return self.sequences_of(requests[0])
        explicit_batch = ExplicitBatch(len(requests))
        priority = min(request.priority for request in requests)  # they go together
        limits = batch_output_limits(requests, self._capabilities)
        return [
            self._make(
                replace(request, priority=priority), self._seed_of(request), limit, explicit_batch
            )
            for request, limit in zip(requests, limits, strict=True)
        ]

    def canary(self) -> Sequence:
        """A canary: a sequence of one token that gives two more, by a prefill and a decode step."""
        seq = Sequence(
            self._next_seq_id,
            (0,),
            (),
            SamplingParams(temperature=0, max_tokens=2, seed=0, ignore_eos=True),
            stop_token_ids=(),
            max_tokens=min(2, context_limit(self._capabilities)[0] - 1),
            is_canary=True,
        )
        self._next_seq_id += 1
        return seq

    def _make(
        self,
        request: EngineRequest,
        seed: int,
        max_tokens: int,
        explicit_batch: ExplicitBatch | None,
    ) -> Sequence:
        sampling = replace(request.sampling, seed=seed, n=1)
        # Without a prefix cache only the answers to one prompt share its blocks, while they run.
        is_cached = self._config.enable_prefix_caching
        eos = () if sampling.ignore_eos else self._capabilities.eos_token_ids
        seq = Sequence(
            self._next_seq_id,
            tuple(request.prompt_token_ids),
            tuple(request.output_token_ids),
            sampling,
            stop_token_ids=tuple(dict.fromkeys((*eos, *sampling.stop_token_ids))),
            max_tokens=max_tokens,
            priority=request.priority,
            shares_blocks=is_cached or request.family is not None,
            cache_salt=request.cache_salt if is_cached else request.family,
            explicit_batch=explicit_batch,
        )
        self._next_seq_id += 1
        return seq

    def _seed_of(self, request: EngineRequest) -> int:
        return self._draw_seed() if request.sampling.seed is None else request.sampling.seed


def check_request(request: EngineRequest, capabilities: RunnerCapabilities) -> None:
    """Checks a request that runs by itself.

    Raises:
        InvalidRequestError: an empty prompt, ids that are no tokens, options out of range, or
            nothing to generate.
        ContextLengthError: the prompt leaves no room for a token.
    """
    vocab_size = capabilities.vocab_size
    request.check_options()
    if not request.prompt_token_ids:
        raise InvalidRequestError(
            "the prompt has 0 tokens, expected at least 1", param="prompt", code="empty_prompt"
        )
    check_ids(request.prompt_token_ids, vocab_size, "prompt")
    check_ids(request.output_token_ids, vocab_size, "output_token_ids")
    request.sampling.check_vocabulary(vocab_size)
    if request.output_token_ids and request.sampling.n > 1:
        raise InvalidRequestError(
            f"output_token_ids resumes one sequence, but n is {request.sampling.n}; resume each "
            "sequence by itself, with n=1 and its own seed",
            param="output_token_ids",
        )
    num_prompt_tokens = len(request.prompt_token_ids)
    limit, reason = context_limit(capabilities)
    if num_prompt_tokens + 1 > limit:
        raise ContextLengthError(
            f"the prompt has {num_prompt_tokens} tokens and needs room for at least 1 more, but "
            f"{limit} tokens fit a sequence here ({reason}); shorten the prompt or raise "
            f"{'max_model_len' if limit == capabilities.max_model_len else 'num_kv_blocks'}",
            param="prompt",
            code="context_length_exceeded",
        )
    max_tokens = output_limit(request, capabilities)
    if len(request.output_token_ids) >= max_tokens:
        raise InvalidRequestError(
            f"output_token_ids has {len(request.output_token_ids)} tokens of at most "
            f"{max_tokens}; there is nothing left to generate",
            param="output_token_ids",
        )


def check_batch_size(num_prompts: int, batch_sizes: Many[int], *, param: str = "prompts") -> None:
    """Checks the size of an explicit batch.

    Args:
        num_prompts: of the batch.
        batch_sizes: sizes that are decoded.
        param: name of the request's field for messages.

    Raises:
        UnsupportedBatchSizeError: a batch of this size isn't decoded.
    """
    if num_prompts not in batch_sizes:
        raise UnsupportedBatchSizeError(
            f"the batch has {num_prompts} prompts, but a batch is decoded with "
            f"{' or '.join(map(str, batch_sizes))} rows; send one of these sizes, or send the "
            "prompts as independent requests, which are grouped as they come",
            param=param,
            code="unsupported_batch_size",
        )


def check_batch(
    requests: list[EngineRequest], capabilities: RunnerCapabilities, config: EngineConfig
) -> None:
    """Checks an explicit batch: its size first, then each request, then that all fit at once.

    Raises:
        UnsupportedBatchSizeError: the batch is of a size that isn't decoded as one.
        InvalidRequestError: see `check_request`; or a request asks for n > 1.
        ContextLengthError: the prompts don't fit the KV cache together.
    """
    sizes = [
        size for size in capabilities.decode_batch_sizes if size <= config.max_running_requests
    ]
    check_batch_size(len(requests), sizes)
    for request in requests:
        check_request(request, capabilities)
        if len(requests) > 1 and request.sampling.n > 1:
            raise InvalidRequestError(
                f"n is {request.sampling.n} in a batch of {len(requests)} prompts, expected 1: "
                "each prompt is one row",
                param="n",
            )
    num_blocks = capabilities.num_kv_blocks - 1
    num_needed = sum(_blocks_to_begin(request, capabilities) for request in requests)
    if num_needed > num_blocks:
        raise ContextLengthError(
            f"the {len(requests)} prompts need {num_needed} KV blocks of "
            f"{capabilities.block_size} tokens at once, but the cache has {num_blocks}; shorten "
            "the prompts, send them as independent requests, or raise num_kv_blocks",
            param="prompts",
            code="context_length_exceeded",
        )


def context_limit(capabilities: RunnerCapabilities) -> tuple[int, str]:
    """Most tokens of one sequence, and what sets that limit."""
    num_blocks = capabilities.num_kv_blocks - 1
    pool_tokens = num_blocks * capabilities.block_size
    if pool_tokens < capabilities.max_model_len:
        return pool_tokens, (
            f"the KV cache has {num_blocks} blocks of {capabilities.block_size} tokens"
        )
    return capabilities.max_model_len, f"max_model_len is {capabilities.max_model_len}"


def output_limit(request: EngineRequest, capabilities: RunnerCapabilities) -> int:
    """The request's `max_tokens`, clamped to the room its prompt leaves."""
    limit, _ = context_limit(capabilities)
    room = limit - len(request.prompt_token_ids)
    asked = request.sampling.max_tokens
    return room if asked is None else min(asked, room)


def batch_output_limits(
    requests: list[EngineRequest], capabilities: RunnerCapabilities
) -> list[int]:
    """Each request's `max_tokens` such that a whole explicit batch fits the KV cache to its end.

    Members of a batch wait for each other, so one that was preempted for another could never be
    admitted again: blocks that aren't needed at the start are divided evenly beforehand.
    """
    num_begin = [_blocks_to_begin(request, capabilities) for request in requests]
    num_spare = (capabilities.num_kv_blocks - 1 - sum(num_begin)) // len(requests)
    return [
        min(
            output_limit(request, capabilities),
            (begin + num_spare) * capabilities.block_size - len(request.prompt_token_ids),
        )
        for request, begin in zip(requests, num_begin, strict=True)
    ]


def _blocks_to_begin(request: EngineRequest, capabilities: RunnerCapabilities) -> int:
    num_tokens = len(request.prompt_token_ids) + len(request.output_token_ids) + 1
    return -(-num_tokens // capabilities.block_size)


def check_ids(
    token_ids: Iterable[int], vocab_size: int, param: str, place: str | None = None
) -> None:
    """Checks that ids are tokens.

    Args:
        token_ids: of a prompt or an output.
        vocab_size: of the model.
        param: the request's field.
        place: path of the ids in the request for messages; None: `param`.

    Raises:
        InvalidRequestError: one isn't.
    """
    place = param if place is None else place
    for position, token_id in enumerate(token_ids):
        if not isinstance(token_id, int) or isinstance(token_id, bool):
            raise InvalidRequestError(
                f"{place}[{position}] is {token_id!r}, expected an integer token id", param=param
            )
        if not 0 <= token_id < vocab_size:
            raise InvalidRequestError(
                f"{place}[{position}] is token {token_id}, but ids go from 0 to {vocab_size - 1}",
                param=param,
            )
