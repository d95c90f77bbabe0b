"""The engines with their checkpoint's tokenizer: token requests in, text out.

What requests may be, how they are begun, and how a batch is run whole. Knows neither the
OpenAI API nor FastAPI nor Ray.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from deployments.engine_client import EngineClient
from deployments.generation import Generation, feed_event, make_processor
from qwen3_a8w8.engine.admission import context_limit
from qwen3_a8w8.engine.request import EngineRequest, TokenEvent
from qwen3_a8w8.engine.sampling_params import MAX_SEED, SamplingParams
from qwen3_a8w8.errors import ContextLengthError, UnsupportedBatchSizeError
from qwen3_a8w8.text.output import OutputDelta
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
