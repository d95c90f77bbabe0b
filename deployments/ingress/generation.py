"""From token requests to text: generations over the engines, with the checkpoint's tokenizer.

A generation is the sequences of one client request, run together and merged into one series of
updates. `TextGenerator` starts them, and runs explicit batches whole. Knows neither the OpenAI
API nor FastAPI nor Ray.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from deployments.replicas.admission import Places
from deployments.replicas.engine_client import EngineClient
from deployments.replicas.failover import EngineLost
from qwen3_a8w8.engine.admission.sequence_factory import check_batch_size, context_limit
from qwen3_a8w8.engine.request import EngineRequest, TokenEvent, derive_seed
from qwen3_a8w8.engine.sampling_params import MAX_SEED, SamplingParams
from qwen3_a8w8.errors import ContextLengthError, EngineDeadError
from qwen3_a8w8.text.output_processor import OutputProcessor
from qwen3_a8w8.text.outputs import OutputDelta
from qwen3_a8w8.text.tokenizer import Tokenizer

Updates = list[tuple[int, OutputDelta]]
"""What has come since the last look: (sequence, what it adds), in order."""


def seed_of(sampling: SamplingParams) -> int:
    """The seed of a request: its own, or one drawn here, so that a resumed request keeps it."""
    return secrets.randbelow(MAX_SEED + 1) if sampling.seed is None else sampling.seed


def split_request(
    prompt_token_ids: Sequence[int],
    sampling: SamplingParams,
    seed: int,
    options: Mapping[str, Any] | None = None,
) -> list[EngineRequest]:
    """The `n` requests of one prompt, each with its own seed, that share the prompt's blocks.

    Args:
        prompt_token_ids: the prompt.
        sampling: settings of all of them.
        seed: of the first; the others' are derived from it.
        options: further fields of `EngineRequest`, such as `priority`.

    Raises:
        InvalidRequestError: one of the options is out of range.
    """
    family = secrets.token_hex(8) if sampling.n > 1 else None
    requests = [
        EngineRequest(
            prompt_token_ids=tuple(prompt_token_ids),
            family=family,
            sampling=replace(
                sampling,
                n=1,
                seed=derive_seed(seed, index),
                # They share the prompt: its log-probabilities come with the first.
                prompt_logprobs=None if index else sampling.prompt_logprobs,
            ),
            **(options or {}),
        )
        for index in range(sampling.n)
    ]
    for request in requests:
        request.check_options()
    return requests


class TextGenerator:
    """Starts generations and runs explicit batches, for routes and handle methods alike."""

    def __init__(
        self, engine: EngineClient, tokenizer: Tokenizer, decode_batch_sizes: Sequence[int]
    ) -> None:
        """Takes the engines.

        Args:
            engine: the engines.
            tokenizer: of the checkpoint that they run.
            decode_batch_sizes: sizes that an explicit batch may have.
        """
        self._engine = engine
        self._tokenizer = tokenizer
        self._batch_sizes = tuple(decode_batch_sizes)

    def check_batch_size(self, num_prompts: int) -> None:
        """Checks the size of an explicit batch, before anything else of it is looked at.

        Raises:
            UnsupportedBatchSizeError: the engines don't decode a batch of this size.
        """
        check_batch_size(num_prompts, self._batch_sizes, param="prompt")

    async def max_prompt_tokens(self) -> int:
        """Longest prompt that leaves room for one token of output."""
        limit, _ = context_limit(await self._engine.capabilities())
        return limit - 1

    async def check_room(self, prompts: Sequence[Sequence[int]], max_tokens: int | None) -> None:
        """Checks that whole answers fit behind prompts, where clamping isn't wanted.

        Args:
            prompts: ids of each.
            max_tokens: tokens of an answer; None: whatever fits, at least one.

        Raises:
            ContextLengthError: one doesn't fit.
        """
        limit, reason = context_limit(await self._engine.capabilities())
        for prompt in prompts:
            if len(prompt) + (max_tokens or 1) > limit:
                raise ContextLengthError(
                    f"the prompt has {len(prompt)} tokens and max_tokens is {max_tokens}, but "
                    f"{limit} tokens fit a sequence here ({reason}); lower max_tokens, or leave "
                    "out strict_max_tokens to get what fits",
                    param="max_tokens",
                    code="context_length_exceeded",
                )

    async def start(
        self, requests: Sequence[EngineRequest], places: Places | None = None
    ) -> Generation:
        """Sends requests (`n` = 1, with seeds) and waits until all are accepted.

        Args:
            requests: the requests.
            places: that they take; None: nobody has asked whether there is room.

        Raises:
            InvalidRequestError: one can't be served; none goes on.
            CapacityError: the engines are full; none goes on.
            EngineDeadError: no engine takes them.
        """
        generation = Generation(self._engine, self._tokenizer, requests, places)
        try:
            await generation.start()
        except BaseException:
            generation.close()
            raise
        return generation

    async def run_batch(
        self, requests: list[EngineRequest], places: Places | None = None
    ) -> list[OutputDelta]:
        """Runs 1 or 16 requests (`n` = 1, with seeds) as one batch.

        Returns:
            The whole output of each as one delta, in the order of the requests.

        Raises:
            UnsupportedBatchSizeError: another number of requests.
            InvalidRequestError: one can't be served; none was started.
            CapacityError: the engines are full.
            EngineDeadError: no engine takes them.
        """
        events = await self._engine.generate_batch(requests, places)
        # Stop strings are found afterwards: rows of a true batch go on to its end.
        return [
            OutputProcessor(self._tokenizer, request.sampling).feed(event)
            for request, event in zip(requests, events, strict=True)
        ]


class Generation:
    """Running sequences of one client request.

    `start`, then iterate, then `close` in any case. Iteration gives everything that has come
    since the last look, so that a slow client costs few large frames. A sequence whose text has
    met a stop string ends, and all of them end when one fails or the client has gone.
    """

    def __init__(
        self,
        engine: EngineClient,
        tokenizer: Tokenizer,
        requests: Sequence[EngineRequest],
        places: Places | None = None,
    ) -> None:
        self._engine = engine
        self._places = places
        self._requests = list(requests)
        self._processors = [
            OutputProcessor(tokenizer, request.sampling) for request in self._requests
        ]
        self._num_accepted = 0
        self._num_open = len(self._requests)
        self._without_engine: set[int] = set()  # sequences that wait for another one
        self._has_lost_engine = False
        self._updates: Updates = []
        self._error: Exception | None = None
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def waits_for_engine(self) -> bool:
        """Whether a sequence has lost its engine and no other one has taken it yet."""
        return bool(self._without_engine)

    async def start(self) -> None:
        """Sends all sequences and waits until an engine has accepted each of them.

        Raises:
            InvalidRequestError: a request can't be served; none of them goes on.
            CapacityError: the engines are full; none of them goes on.
            EngineDeadError: no engine takes them.
        """
        self._tasks = [
            asyncio.create_task(self._pump(index), name=f"sequence-{index}")
            for index in range(len(self._requests))
        ]
        while self._error is None and self._num_accepted < len(self._requests):
            await self._wait()
        if self._error is not None:
            self.close()
            raise self._error

    def close(self) -> None:
        """Ends what is still running; may be called again, and from any state."""
        for task in self._tasks:
            task.cancel()

    async def __aiter__(self) -> AsyncIterator[Updates]:
        async for updates in self.every(None):
            yield updates

    async def every(self, period_s: float | None) -> AsyncIterator[Updates]:
        """As iteration, with empty updates whenever nothing has come for `period_s` seconds.

        An empty update also comes when an engine is lost.

        Raises:
            EngineDeadError: a sequence was lost.
            Qwen3A8W8Error: as an engine raised it.
        """
        while True:
            if self._updates:
                updates, self._updates = self._updates, []
                yield updates
            elif self._error is not None:
                self.close()
                raise self._error
            elif self._num_open == 0:
                return
            elif self._has_lost_engine:
                self._has_lost_engine = False
                yield []
            elif not await self._wait(period_s):
                yield []

    async def _wait(self, timeout_s: float | None = None) -> bool:
        """Waits for a change; returns False when the time is up without one."""
        loop = asyncio.get_running_loop()
        # A timer costs less than wait_for, which makes a task; this runs once per token.
        timer = None if timeout_s is None else loop.call_later(timeout_s, self._changed.set)
        await self._changed.wait()
        self._changed.clear()
        if timer is None:
            return True
        timer.cancel()
        return loop.time() < timer.when()

    async def _pump(self, index: int) -> None:
        """Reads one sequence's events to its end; leaving the stream early aborts it."""
        try:
            stream = self._engine.stream(self._requests[index], self._places)
            async with aclosing(stream) as events:
                async for event in events:
                    if self._take(index, event):
                        break
            if self._processors[index].finish_reason is None:
                raise EngineDeadError("a sequence's events ended without a finish reason")
            self._num_open -= 1
        except Exception as error:
            self._error = self._error or error
        finally:
            self._changed.set()

    def _take(self, index: int, event: TokenEvent | EngineLost) -> bool:
        """Takes in an event; whether the sequence has ended with it."""
        self._changed.set()
        if isinstance(event, EngineLost):
            self._without_engine.add(index)
            self._has_lost_engine = True
            return False
        self._without_engine.discard(index)
        if not event.token_ids and event.finish_reason is None:
            self._num_accepted += 1
            return False
        delta = self._processors[index].feed(event)
        self._updates.append((index, delta))
        return delta.finish_reason is not None
