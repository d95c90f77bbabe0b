"""From token requests to text: generations over the engines, with the checkpoint's tokenizer.

A generation is the sequences of one client request, run together and merged into one series
of updates. It joins the engines' token events with the text side (`OutputProcessor`), ends a
sequence whose text has met a stop string, and ends all of them when one fails or the client
has gone. Knows neither the OpenAI API nor FastAPI nor Ray.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from deployments.replicas.engine_client import EngineClient
from qwen3_a8w8.engine.admission.sequence_factory import context_limit
from qwen3_a8w8.engine.plan import RunnerCapabilities
from qwen3_a8w8.engine.request import EngineRequest, TokenEvent, derive_seed
from qwen3_a8w8.engine.sampling_params import MAX_SEED, SamplingParams
from qwen3_a8w8.errors import ContextLengthError, EngineDeadError, UnsupportedBatchSizeError
from qwen3_a8w8.openai.response import Answer
from qwen3_a8w8.text.output_processor import OutputDelta, OutputProcessor
from qwen3_a8w8.text.tokenizer import Tokenizer


class TextEngine:
    """Begins generations and runs batches, whoever asks for them."""

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
        """Checks the size of an explicit batch.

        Raises:
            UnsupportedBatchSizeError: the engines don't decode a batch of this size.
        """
        if num_prompts not in self._batch_sizes:
            raise UnsupportedBatchSizeError(
                f"the batch has {num_prompts} prompts, but a batch is decoded with "
                f"{' or '.join(map(str, self._batch_sizes))} rows; send one of these sizes, or "
                "send the prompts as independent requests, which are grouped as they come",
                param="prompt",
                code="unsupported_batch_size",
            )

    async def max_prompt_tokens(self) -> int:
        """Longest prompt that leaves room for one token of output."""
        limit, _ = context_limit(await self._engine.capabilities())
        return limit - 1

    async def check_room(self, prompts: Sequence[Sequence[int]], max_tokens: int | None) -> None:
        """Checks that whole answers fit behind prompts; an engine gives what room there is.

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

    async def start(self, requests: list[EngineRequest]) -> Generation:
        """Sends requests (`n` = 1, with seeds) and waits until all are accepted.

        Raises:
            InvalidRequestError: one can't be served; none goes on.
            CapacityError: the engines are full; none goes on.
            EngineDeadError: no engine takes them.
        """
        capabilities = await self._engine.capabilities()
        generation = Generation(self._engine, self._tokenizer, capabilities, requests)
        try:
            await generation.start()
        except BaseException:
            generation.close()
            raise
        return generation

    async def run_batch(self, requests: list[EngineRequest]) -> list[OutputDelta]:
        """Runs 1 or 16 requests (`n` = 1, with seeds) as one batch.

        Returns:
            The whole output of each, in the order of the requests.

        Raises:
            UnsupportedBatchSizeError: another number of requests.
            InvalidRequestError: one can't be served; none was begun.
            CapacityError: the engines are full.
            EngineDeadError: no engine takes them.
        """
        capabilities = await self._engine.capabilities()
        outputs = await self._engine.generate_batch(requests)
        deltas = []
        for request, output in zip(requests, outputs, strict=True):
            # Stop strings are found afterwards: rows of a true batch go on to its end.
            processor = make_processor(self._tokenizer, request.sampling, capabilities)
            event = TokenEvent(
                seq_id=0,
                token_ids=output.token_ids,
                logprobs=output.logprobs,
                finish_reason=output.finish_reason,
                stop_token_id=output.stop_token_id,
                prompt_tokens=output.prompt_tokens,
            )
            deltas.append(feed_event(processor, event, request.sampling))
        return deltas


def seed_of(sampling: SamplingParams) -> int:
    """The seed of a request: its own, or one drawn here, so that a resumed request keeps it."""
    return secrets.randbelow(MAX_SEED + 1) if sampling.seed is None else sampling.seed


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


@dataclass(frozen=True, slots=True)
class StartedAnswer:
    """A generation that the engines have accepted, and how it is to be written.

    Attributes:
        generation: its news; whoever reads them closes it.
        answer: writes them.
        num_per_prompt: sequences that share a prompt.
    """

    generation: Generation
    answer: Answer
    num_per_prompt: int

    @property
    def num_cached_tokens(self) -> int:
        """Cached prompt tokens, each prompt counted once."""
        return sum(self.generation.num_cached_tokens[:: self.num_per_prompt])
