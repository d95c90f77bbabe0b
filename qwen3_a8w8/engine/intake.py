"""Turns accepted requests into sequences: ids, seeds, stop tokens, clamped lengths.

Checks go first (`admission.py`); what comes out of here can be scheduled as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.engine.admission import (
    batch_output_limits,
    check_batch,
    check_request,
    context_limit,
    output_limit,
)
from qwen3_a8w8.engine.plan import RunnerCapabilities
from qwen3_a8w8.engine.request import EngineRequest, derive_seed
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.engine.sequence import Gang, Sequence


class Intake:
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
            request = replace(request, family=f"the answers from {self._next_seq_id} on")
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
        gang = Gang(len(requests))
        priority = min(request.priority for request in requests)  # they go together
        limits = batch_output_limits(requests, self._capabilities)
        return [
            self._make(replace(request, priority=priority), self._seed_of(request), limit, gang)
            for request, limit in zip(requests, limits, strict=True)
        ]

    def probe(self) -> Sequence:
        """A sequence of one token that gives two more: a prefill and a decode step."""
        seq = Sequence(
            self._next_seq_id,
            (0,),
            (),
            SamplingParams(temperature=0, max_tokens=2, seed=0, ignore_eos=True),
            stop_token_ids=(),
            max_tokens=min(2, context_limit(self._capabilities)[0] - 1),
            is_probe=True,
        )
        self._next_seq_id += 1
        return seq

    def _make(
        self, request: EngineRequest, seed: int, max_tokens: int, gang: Gang | None
    ) -> Sequence:
        sampling = replace(request.sampling, seed=seed, n=1)
        # Without a prefix cache only the answers to one prompt share its blocks, while they live.
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
            gang=gang,
        )
        self._next_seq_id += 1
        return seq

    def _seed_of(self, request: EngineRequest) -> int:
        return self._draw_seed() if request.sampling.seed is None else request.sampling.seed
