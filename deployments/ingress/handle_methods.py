"""The methods of the Python handle: prompts and settings of a call in, outputs out.

Start at `HandleMethods.generate`. Everything runs through the same `ModelService` as the routes.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from deployments.ingress.generation import seed_of
from deployments.ingress.service import ModelService
from qwen3_a8w8.engine.request import EngineRequest
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.errors import InvalidRequestError
from qwen3_a8w8.text.generation_defaults import GenerationDefaults
from qwen3_a8w8.text.outputs import GenerationOutput, OutputDelta
from qwen3_a8w8.text.reasoning import thinking_after
from qwen3_a8w8.text.structured import Thinking

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]
"""Text, token ids, or chat messages."""

Sampling = SamplingParams | Mapping[str, Any] | None
"""Settings, a dict of their fields over the checkpoint's defaults, or the defaults."""


class HandleMethods:
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
        deltas: list[OutputDelta] = []
        async for delta in self._stream(request):
            deltas.append(delta)
        return _output(request, deltas)

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
        async for delta in self._stream(request):
            yield delta

    async def generate_batch(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        *,
        options: Mapping[str, Any] | None = None,
    ) -> list[GenerationOutput]:
        """Answers 1 or 16 prompts as one true batch; see `Ingress.generate_batch`."""
        self._service.generator.check_batch_size(len(prompts))
        async with self._service.engine.admission.places(len(prompts)) as places:
            requests = [
                await self._request(prompt, sampling, chat_template_kwargs, options)
                for prompt in prompts
            ]
            deltas = await self._service.generator.run_batch(requests, places)
        return [_output(request, [delta]) for request, delta in zip(requests, deltas, strict=True)]

    async def _stream(self, request: EngineRequest) -> AsyncGenerator[OutputDelta, None]:
        async with self._service.engine.admission.places(1) as places:
            generation = await self._service.generator.start([request], places)
        with contextlib.closing(generation):
            async for updates in generation:
                for _, delta in updates:
                    yield delta

    async def _request(
        self,
        prompt: Prompt,
        sampling: Sampling,
        chat_template_kwargs: Mapping[str, Any] | None,
        options: Mapping[str, Any] | None,
    ) -> EngineRequest:
        reader = self._service.prompts
        params = _sampling_params(sampling, self._service.defaults).tokenized(reader.tokenizer)
        limit = await self._service.generator.max_prompt_tokens()
        given: Any = prompt
        if not isinstance(prompt, str) and prompt and isinstance(prompt[0], Mapping):
            chat = await reader.chat(given, limit, template_kwargs=chat_template_kwargs)
            ids = chat.token_ids
            if params.structured is not None and params.structured.thinking is Thinking.NONE:
                params = params.with_thinking(thinking_after(chat.state))
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
    return GenerationOutput.collect(
        request.prompt_token_ids,
        [deltas],
        has_logprobs=request.sampling.logprobs is not None,
        has_prompt_logprobs=request.sampling.prompt_logprobs is not None,
    )
