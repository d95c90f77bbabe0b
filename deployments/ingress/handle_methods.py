"""The methods of the Python handle: prompts and settings of a call in, outputs out.

Start at `PythonCalls.generate`. Runs everything through the same `ModelService` as the routes.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deployments.ingress.generation import collect_text, seed_of
from deployments.ingress.service import ModelService
from qwen3_a8w8.engine.request import EngineRequest
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.errors import InvalidRequestError
from qwen3_a8w8.text.generation_defaults import GenerationDefaults
from qwen3_a8w8.text.output_processor import LogprobEntry, OutputDelta
from qwen3_a8w8.text.reasoning import initial_state
from qwen3_a8w8.text.structured import Thinking, thinking_after

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]
"""Text, token ids, or chat messages."""

Sampling = SamplingParams | Mapping[str, Any] | None
"""Settings, a dict of their fields over the checkpoint's defaults, or the defaults."""


@dataclass(frozen=True, slots=True)
class GenerationOutput:
    """A finished answer to a Python call; fields as in `qwen3_a8w8.LLM`'s outputs.

    Attributes:
        prompt_token_ids: the prompt.
        token_ids: everything generated, the token that ended it included.
        text: the answer as it stands, think block included.
        finish_reason: "stop" or "length".
        logprobs: one entry per token, or None where not asked for.
        prompt_logprobs: one entry per token of the prompt but the first, or None likewise.
    """

    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    logprobs: tuple[LogprobEntry, ...] | None
    prompt_logprobs: tuple[LogprobEntry, ...] | None = None


class PythonCalls:
    """What the handle's methods do; their contract is `Ingress`'s."""

    def __init__(self, service: ModelService) -> None:
        self._service = service

    async def generate(
        self,
        prompt: Prompt,
        sampling: Sampling = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        *,
        options: Mapping[str, Any] | None = None,
    ) -> GenerationOutput:
        """Answers one prompt; see `Ingress.generate`. `options` are `EngineRequest`'s."""
        request = await self._request(prompt, sampling, chat_template_kwargs, options)
        generation = await self._service.text_engine.start([request])
        return _output(request, await collect_text(generation))

    async def generate_stream(
        self,
        prompt: Prompt,
        sampling: Sampling = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        *,
        options: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[OutputDelta, None]:
        """Answers one prompt bit by bit; see `Ingress.generate_stream`."""
        request = await self._request(prompt, sampling, chat_template_kwargs, options)
        generation = await self._service.text_engine.start([request])
        with contextlib.closing(generation):
            async for news in generation:
                for _, delta in news:
                    yield delta

    async def generate_batch(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling = None,
        *,
        options: Mapping[str, Any] | None = None,
    ) -> list[GenerationOutput]:
        """Answers 1 or 16 prompts as one true batch; see `Ingress.generate_batch`."""
        self._service.text_engine.check_batch_size(len(prompts))
        requests = [await self._request(prompt, sampling, None, options) for prompt in prompts]
        deltas = await self._service.text_engine.run_batch(requests)
        return [_output(request, [delta]) for request, delta in zip(requests, deltas, strict=True)]

    async def _request(
        self,
        prompt: Prompt,
        sampling: Sampling,
        chat_template_kwargs: Mapping[str, Any] | None,
        options: Mapping[str, Any] | None,
    ) -> EngineRequest:
        params = _sampling_params(sampling, self._service.defaults)
        reader = self._service.prompts
        limit = await self._service.text_engine.max_prompt_tokens()
        given: Any = prompt
        if not isinstance(prompt, str) and prompt and isinstance(prompt[0], Mapping):
            chat = await reader.chat(given, limit, template_kwargs=chat_template_kwargs)
            ids = chat.token_ids
            if params.structured is not None and params.structured.thinking is Thinking.NONE:
                params = params.with_thinking(thinking_after(initial_state(chat.text)))
        else:
            ids = await reader.encode(given, limit)
        return EngineRequest(ids, params.with_seed(seed_of(params)), **(options or {}))


def _sampling_params(sampling: Sampling, defaults: GenerationDefaults) -> SamplingParams:
    if isinstance(sampling, SamplingParams):
        params = sampling
    else:
        names = [field.name for field in dataclasses.fields(SamplingParams)]
        given = dict(sampling or {})
        for name in given:
            if name not in names:
                raise InvalidRequestError(
                    f"sampling has the unknown key {name!r}; valid keys: {', '.join(names)}",
                    param=str(name),
                )
        params = SamplingParams(**{**defaults.sampling_fields(), **given})
    if params.n != 1:
        raise InvalidRequestError(
            f"n is {params.n}, expected 1: a call of the handle gives one answer; call again "
            "with another seed",
            param="n",
        )
    return params


def _output(request: EngineRequest, deltas: Sequence[OutputDelta]) -> GenerationOutput:
    logprobs = tuple(entry for delta in deltas for entry in delta.logprobs)
    of_prompt = tuple(entry for delta in deltas for entry in delta.prompt_logprobs)
    return GenerationOutput(
        prompt_token_ids=request.prompt_token_ids,
        token_ids=tuple(token_id for delta in deltas for token_id in delta.token_ids),
        text="".join(delta.text for delta in deltas),
        finish_reason=deltas[-1].finish_reason or "stop",
        logprobs=logprobs if request.sampling.logprobs is not None else None,
        prompt_logprobs=of_prompt if request.sampling.prompt_logprobs is not None else None,
    )
