"""One served model: requests in text in, generations out.

Owns tokenizer, chat template and the checkpoint's sampling defaults; turns OpenAI
requests and Python calls into token requests. Knows neither FastAPI nor Ray.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deployments.engine_client import EngineClient
from deployments.errors import ModelNotFoundError
from deployments.generation import (
    Generation,
    collect_text,
    feed_event,
    make_processor,
    split_request,
)
from qwen3_a8w8.engine.request import EngineRequest, TokenEvent
from qwen3_a8w8.engine.sampling_params import MAX_SEED, SamplingParams
from qwen3_a8w8.errors import InvalidRequestError, UnsupportedBatchSizeError
from qwen3_a8w8.openai.chat_choice import ChatParsing
from qwen3_a8w8.openai.chat_request import ChatRequest
from qwen3_a8w8.openai.completion_request import CompletionRequest
from qwen3_a8w8.text.chat_template import ChatTemplate
from qwen3_a8w8.text.generation_defaults import GenerationDefaults
from qwen3_a8w8.text.output import LogprobEntry, OutputDelta
from qwen3_a8w8.text.reasoning import initial_state
from qwen3_a8w8.text.tokenizer import Tokenizer

logger = logging.getLogger("ray.serve")

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]
"""Text, token ids, or chat messages."""


@dataclass(frozen=True, slots=True)
class GenerationOutput:
    """A finished answer to a Python call; fields as in `qwen3_a8w8.LLM`'s outputs.

    Attributes:
        prompt_token_ids: the prompt.
        token_ids: everything generated, the token that ended it included.
        text: the answer as it stands, think block included.
        finish_reason: "stop" or "length".
        logprobs: one entry per token, or None where not asked for.
    """

    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    logprobs: tuple[LogprobEntry, ...] | None


@dataclass(frozen=True, slots=True)
class StartedChat:
    """A chat generation that the engines have accepted."""

    generation: Generation
    num_choices: int
    num_prompt_tokens: int
    parsing: ChatParsing


@dataclass(frozen=True, slots=True)
class StartedCompletion:
    """A text generation that the engines have accepted; choice p * n + k answers prompt p."""

    generation: Generation
    num_choices: int
    num_per_prompt: int
    num_prompt_tokens: int
    echo_texts: tuple[str, ...]


class ModelService:
    """Everything between a request in text and the engines.

    Attributes:
        name: what clients call the model.
        engine: the engines.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        engine: EngineClient,
        *,
        decode_batch_sizes: Sequence[int],
    ) -> None:
        """Reads the text files of a checkpoint.

        Args:
            name: what clients call the model.
            directory: of the checkpoint.
            engine: the engines that run it.
            decode_batch_sizes: sizes that an explicit batch may have.

        Raises:
            CheckpointError: a file is missing or damaged.
        """
        self.name = name
        self.engine = engine
        self._batch_sizes = tuple(decode_batch_sizes)
        self._tokenizer = Tokenizer.from_directory(directory)
        self._template = ChatTemplate.from_directory(
            directory, special_tokens=self._tokenizer.special_tokens
        )
        self._defaults = GenerationDefaults.from_directory(directory)

    def check_model(self, name: str | None) -> None:
        """Checks the model that a request names, if it names one.

        Raises:
            ModelNotFoundError: it isn't served here.
        """
        if name is not None and name != self.name:
            raise ModelNotFoundError(
                f"the model {name!r} doesn't exist; served is {self.name!r}",
                param="model",
                code="model_not_found",
            )

    async def start_chat(self, request: ChatRequest) -> StartedChat:
        """Sends a chat request to the engines and waits until they have accepted it.

        Raises:
            InvalidRequestError: it can't be served.
            CapacityError: the engines are full.
            EngineDeadError: no engine takes it.
        """
        self.check_model(request.model)
        self._log_unknown(request.unknown_fields())
        sampling = request.sampling_params(self._defaults)
        prompt = self._render(
            request.template_messages(),
            tools=request.template_tools(),
            template_kwargs=request.chat_template_kwargs,
        )
        prompt_ids = self._tokenizer.encode(prompt)
        generation = await self._start(
            split_request(prompt_ids, sampling, _seed(sampling), request.engine_options())
        )
        return StartedChat(
            generation,
            sampling.n,
            len(prompt_ids),
            ChatParsing(reasoning=initial_state(prompt), has_tools=request.has_tools),
        )

    async def start_completion(self, request: CompletionRequest) -> StartedCompletion:
        """Sends a text completion request, with one or several independent prompts.

        Raises:
            InvalidRequestError: it can't be served.
            CapacityError: the engines are full.
            EngineDeadError: no engine takes it.
        """
        self.check_model(request.model)
        self._log_unknown(request.unknown_fields())
        sampling = request.sampling_params(self._defaults)
        prompts = [self._prompt_ids(prompt) for prompt in request.prompt]
        seed = _seed(sampling)
        options = request.engine_options()
        requests = [one for ids in prompts for one in split_request(ids, sampling, seed, options)]
        echo: tuple[str, ...] = ()
        if request.echo:
            texts = [
                prompt if isinstance(prompt, str) else self._tokenizer.decode(prompt)
                for prompt in request.prompt
            ]
            echo = tuple(text for text in texts for _ in range(sampling.n))
        return StartedCompletion(
            await self._start(requests),
            len(requests),
            sampling.n,
            sum(map(len, prompts)),
            echo,
        )

    async def complete_batch(
        self, request: CompletionRequest
    ) -> list[tuple[GenerationOutput, OutputDelta]]:
        """Runs the prompts of a text completion request as one true batch.

        Raises:
            UnsupportedBatchSizeError: another number of prompts than 1 or 16.
            InvalidRequestError: a prompt can't be served; none was begun.
            CapacityError: the engines are full.
            EngineDeadError: no engine takes it.
        """
        self.check_batch_size(len(request.prompt))
        self.check_model(request.model)
        if request.is_stream or request.num_choices != 1 or request.echo:
            raise InvalidRequestError(
                "a batch is answered whole, with one choice per prompt; leave out stream, n "
                "and echo",
                param="stream" if request.is_stream else "n" if not request.echo else "echo",
            )
        return await self._run_batch(
            request.prompt, request.sampling_params(self._defaults), request.engine_options()
        )

    async def generate(
        self,
        prompt: Prompt,
        sampling: SamplingParams | Mapping[str, Any] | None = None,
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> GenerationOutput:
        """Answers one prompt; see `Ingress.generate`. `options` are `EngineRequest`'s."""
        prompt_ids, params = self._python_call(prompt, sampling, chat_template_kwargs)
        generation = await self._start(split_request(prompt_ids, params, _seed(params), options))
        deltas = await collect_text(generation)
        return _output(tuple(prompt_ids), deltas, params)

    async def generate_stream(
        self,
        prompt: Prompt,
        sampling: SamplingParams | Mapping[str, Any] | None = None,
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[OutputDelta, None]:
        """Answers one prompt bit by bit; see `Ingress.generate_stream`."""
        prompt_ids, params = self._python_call(prompt, sampling, chat_template_kwargs)
        generation = await self._start(split_request(prompt_ids, params, _seed(params), options))
        with contextlib.closing(generation):
            async for news in generation:
                for _, delta in news:
                    yield delta

    async def generate_batch(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingParams | Mapping[str, Any] | None = None,
        *,
        options: Mapping[str, Any] | None = None,
    ) -> list[GenerationOutput]:
        """Answers 1 or 16 prompts as one true batch; see `Ingress.generate_batch`."""
        self.check_batch_size(len(prompts))
        outputs = await self._run_batch(prompts, self._python_sampling(sampling), options)
        return [output for output, _ in outputs]

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

    async def _start(self, requests: list[EngineRequest]) -> Generation:
        capabilities = await self.engine.capabilities()
        generation = Generation(self.engine, self._tokenizer, capabilities, requests)
        try:
            await generation.start()
        except BaseException:
            generation.close()
            raise
        return generation

    async def _run_batch(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingParams,
        options: Mapping[str, Any] | None = None,
    ) -> list[tuple[GenerationOutput, OutputDelta]]:
        capabilities = await self.engine.capabilities()
        seed = _seed(sampling)
        requests = [
            request
            for prompt in prompts
            for request in split_request(self._prompt_ids(prompt), sampling, seed, options)
        ]
        results = []
        for request, output in zip(
            requests, await self.engine.generate_batch(requests), strict=True
        ):
            # Stop strings are found afterwards: rows of a true batch go on to its end.
            processor = make_processor(self._tokenizer, request.sampling, capabilities)
            event = TokenEvent(
                seq_id=0,
                token_ids=output.token_ids,
                logprobs=output.logprobs,
                finish_reason=output.finish_reason,
                stop_token_id=output.stop_token_id,
            )
            delta = feed_event(processor, event, request.sampling)
            results.append((_output(request.prompt_token_ids, [delta], sampling), delta))
        return results

    def _python_call(
        self,
        prompt: Prompt,
        sampling: SamplingParams | Mapping[str, Any] | None,
        chat_template_kwargs: Mapping[str, Any] | None,
    ) -> tuple[list[int], SamplingParams]:
        params = self._python_sampling(sampling)
        return self._prompt_ids(prompt, chat_template_kwargs), params

    def _python_sampling(
        self, sampling: SamplingParams | Mapping[str, Any] | None
    ) -> SamplingParams:
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
            own = {field.name: getattr(self._defaults, field.name) for field in _default_fields()}
            params = SamplingParams(**{**own, **given})
        if params.n != 1:
            raise InvalidRequestError(
                f"n is {params.n}, expected 1: a call of the handle gives one answer; call again "
                "with another seed",
                param="n",
            )
        return params

    def _prompt_ids(
        self, prompt: Prompt, chat_template_kwargs: Mapping[str, Any] | None = None
    ) -> list[int]:
        if isinstance(prompt, str):
            return self._tokenizer.encode(prompt)
        if prompt and isinstance(prompt[0], Mapping):
            messages: Any = prompt
            rendered = self._render(messages, tools=None, template_kwargs=chat_template_kwargs)
            return self._tokenizer.encode(rendered)
        ids: Any = prompt
        return list(ids)

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        template_kwargs: Mapping[str, Any] | None,
    ) -> str:
        if self._template is None:
            raise InvalidRequestError(
                f"the model {self.name!r} has no chat template; use text completions instead",
                param="messages",
            )
        return self._template.render(messages, tools=tools, template_kwargs=template_kwargs)

    def _log_unknown(self, names: Sequence[str]) -> None:
        if names:
            logger.debug("ignored request fields without a meaning here: %s", ", ".join(names))


def _default_fields() -> list[dataclasses.Field[Any]]:
    return [f for f in dataclasses.fields(GenerationDefaults) if f.name != "eos_token_ids"]


def _seed(sampling: SamplingParams) -> int:
    # Drawn here, not in the engine, so that a resumed request keeps it.
    return secrets.randbelow(MAX_SEED + 1) if sampling.seed is None else sampling.seed


def _output(
    prompt_token_ids: tuple[int, ...], deltas: Sequence[OutputDelta], sampling: SamplingParams
) -> GenerationOutput:
    logprobs = tuple(entry for delta in deltas for entry in delta.logprobs)
    return GenerationOutput(
        prompt_token_ids=prompt_token_ids,
        token_ids=tuple(token_id for delta in deltas for token_id in delta.token_ids),
        text="".join(delta.text for delta in deltas),
        finish_reason=deltas[-1].finish_reason or "stop",
        logprobs=logprobs if sampling.logprobs is not None else None,
    )
