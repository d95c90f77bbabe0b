"""The sequences of one client request, run together and merged into one series of news.

Joins the engines' token events with the text side (`OutputProcessor`), ends a sequence
whose text has met a stop string, and ends all of them when one fails or the client has
gone. Knows neither HTTP nor Ray.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from deployments.engine_client import EngineClient
from qwen3_a8w8.engine.plan import RunnerCapabilities
from qwen3_a8w8.engine.request import EngineRequest, TokenEvent, derive_seed
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.errors import EngineDeadError
from qwen3_a8w8.text.output import OutputDelta, OutputProcessor
from qwen3_a8w8.text.tokenizer import Tokenizer

News = list[tuple[int, OutputDelta]]
"""What has come since the last look: (sequence, what it adds), in order."""


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
                # They share the prompt: its log-probabilities are told with the first.
                prompt_logprobs=None if index else sampling.prompt_logprobs,
            ),
            **(options or {}),
        )
        for index in range(sampling.n)
    ]
    for request in requests:
        request.check_options()
    return requests


def make_processor(
    tokenizer: Tokenizer, sampling: SamplingParams, capabilities: RunnerCapabilities
) -> OutputProcessor:
    """The text side of one sequence."""
    eos = () if sampling.ignore_eos else capabilities.eos_token_ids
    return OutputProcessor(
        tokenizer,
        stop=sampling.stop,
        min_tokens=sampling.min_tokens,
        skip_special_tokens=sampling.skip_special_tokens,
        stop_token_ids=(*eos, *sampling.stop_token_ids),
    )


def feed_event(
    processor: OutputProcessor, event: TokenEvent, sampling: SamplingParams
) -> OutputDelta:
    """What an event adds to a sequence's text.

    Raises:
        EngineDeadError: the event says that the sequence was ended from outside.
    """
    if event.finish_reason in ("abort", "error"):
        raise EngineDeadError(f"the engine ended the sequence: {event.finish_reason}")
    return processor.feed(
        event.token_ids,
        event.logprobs if sampling.logprobs is not None else None,
        "stop" if event.finish_reason == "stop" else "length" if event.finish_reason else None,
        event.prompt_tokens,
    )


class Generation:
    """Running sequences of one client request.

    `start`, then iterate, then `close` in any case. Iteration gives everything that has come
    since the last look, so that a slow client costs few large frames.
    """

    def __init__(
        self,
        engine: EngineClient,
        tokenizer: Tokenizer,
        capabilities: RunnerCapabilities,
        requests: Sequence[EngineRequest],
    ) -> None:
        self._engine = engine
        self._requests = list(requests)
        self._processors = [
            make_processor(tokenizer, request.sampling, capabilities) for request in requests
        ]
        self._num_cached_tokens = [0] * len(self._requests)
        self._num_accepted = 0
        self._num_open = len(self._requests)
        self._news: News = []
        self._error: Exception | None = None
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def num_cached_tokens(self) -> list[int]:
        """Prompt tokens from the prefix cache, by sequence."""
        return list(self._num_cached_tokens)

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

    async def __aiter__(self) -> AsyncIterator[News]:
        async for news in self.every(None):
            yield news

    async def every(self, period_s: float | None) -> AsyncIterator[News]:
        """As iteration, with empty news whenever nothing has come for `period_s` seconds.

        Raises:
            EngineDeadError: a sequence was lost.
            Qwen3A8W8Error: what an engine says of one.
        """
        while True:
            if self._news:
                news, self._news = self._news, []
                yield news
            elif self._error is not None:
                self.close()
                raise self._error
            elif self._num_open == 0:
                return
            elif not await self._wait(period_s):
                yield []

    async def _wait(self, timeout_s: float | None = None) -> bool:
        """Until something has changed; whether it has within the time."""
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
            async with aclosing(self._engine.stream(self._requests[index])) as events:
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

    def _take(self, index: int, event: TokenEvent) -> bool:
        if not event.token_ids and event.finish_reason is None:
            self._num_accepted += 1
            self._changed.set()
            return False
        if event.num_cached_tokens and not self._processors[index].num_tokens:
            self._num_cached_tokens[index] = event.num_cached_tokens
        delta = feed_event(self._processors[index], event, self._requests[index].sampling)
        self._news.append((index, delta))
        self._changed.set()
        return delta.finish_reason is not None


async def collect_text(generation: Generation, index: int = 0) -> list[OutputDelta]:
    """All deltas of one sequence of a started generation."""
    deltas: list[OutputDelta] = []
    with contextlib.closing(generation):
        async for news in generation:
            deltas += [delta for i, delta in news if i == index]
    return deltas
