"""The service of one model: OpenAI requests in, started generations and their writers out.

Turns requests into token requests, with the checkpoint's sampling defaults, and passes them to
`generation.py`. Knows neither FastAPI nor Ray.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from deployments.ingress.generation import Generation, TextGenerator, seed_of, split_request
from deployments.ingress.prompts import ChatPrompt, PromptReader
from deployments.metrics.http_metrics import HttpStats, IngressReport, choices_histogram
from deployments.replicas.admission import Places
from deployments.replicas.engine_client import EngineClient
from qwen3_a8w8.engine.admission.sequence_factory import check_ids
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.errors import InvalidRequestError, ModelNotFoundError
from qwen3_a8w8.openai.chat.choice import ChatParsing, think_ids, thinking_limit
from qwen3_a8w8.openai.chat.request import ChatRequest
from qwen3_a8w8.openai.completions.request import CompletionRequest
from qwen3_a8w8.openai.completions.shapes import CompletionResponse
from qwen3_a8w8.openai.completions.writer import CompletionWriter
from qwen3_a8w8.openai.request import own_names
from qwen3_a8w8.openai.response import ResponseContext, ResponseIdentity, ResponseWriter
from qwen3_a8w8.text.generation_defaults import GenerationDefaults
from qwen3_a8w8.text.reasoning import thinking_after

logger = logging.getLogger("ray.serve")

AnyWriter = ResponseWriter[Any, Any]

Started = tuple[Generation, AnyWriter]
"""A generation that the engines have accepted, and its writer; the reader closes it."""


_OF_CHAT = ((r"prompt\b", "messages"),)
"""What the engine calls a prompt, a client of chat completions has sent as messages."""


class ModelService:
    """Everything between a request in text and the engines.

    Attributes:
        name: what clients call the model.
        root: what it is loaded from: a name or a directory.
        engine: the engines.
        generator: text generation over them, with the checkpoint's tokenizer.
        prompts: tokenizer and chat template.
        defaults: the checkpoint's sampling settings.
        num_weight_bytes: size of the checkpoint's weight files.
        http_stats: what the middleware counts.
        num_choices: `n` of the requests that the engines have accepted.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        engine: EngineClient,
        *,
        decode_batch_sizes: Sequence[int],
        root: str | None = None,
    ) -> None:
        """Reads the text files of a checkpoint.

        Args:
            name: what clients call the model.
            directory: of the checkpoint.
            engine: the engines that run it.
            decode_batch_sizes: sizes that an explicit batch may have.
            root: what the model is loaded from, which clients may call it too; None: its name.

        Raises:
            CheckpointError: a file is missing or damaged.
        """
        self.name = name
        self.root = name if root is None else root
        self.engine = engine
        self.prompts = PromptReader(name, directory)
        self.num_weight_bytes = sum(file.stat().st_size for file in directory.glob("*.safetensors"))
        self.defaults = GenerationDefaults.from_directory(directory)
        self.http_stats = HttpStats()
        self.num_choices = choices_histogram()
        self.generator = TextGenerator(engine, self.prompts.tokenizer, decode_batch_sizes)

    async def own_report(self, timeout_s: float) -> list[IngressReport]:
        """The report of this process, as the only one."""
        return [self.report("local")]

    def report(self, ingress_id: str) -> IngressReport:
        """What this process has done."""
        return self.http_stats.report(ingress_id, self.num_choices, self.engine.failovers)

    def check_model(self, name: str | None) -> None:
        """Checks the model that a request names, if it names one.

        Raises:
            ModelNotFoundError: it isn't served here.
        """
        if name is not None and name not in (self.name, self.root):
            raise ModelNotFoundError(
                f"the model {name!r} doesn't exist; served is {self.name!r}",
                param="model",
                code="model_not_found",
            )

    async def start_chat(
        self,
        request: ChatRequest,
        identity: ResponseIdentity,
        make_writer: Callable[[ResponseContext, ChatParsing], AnyWriter],
    ) -> Started:
        """Sends a chat request to the engines and waits until they have accepted it.

        Args:
            request: the request.
            identity: of its response.
            make_writer: makes the writer of its response.

        Raises:
            InvalidRequestError: it can't be served.
            CapacityError: the engines are full.
            EngineDeadError: no engine takes it.
        """
        self.check_model(request.model)
        if request.skipped_tools:
            logger.warning(
                "a request has tools of types that aren't run here; they are left out: %s",
                ", ".join(request.skipped_tools)[:500],
            )
        identity = await self._fingerprinted(identity)
        sampling = request.sampling_params(self.defaults).tokenized(self.prompts.tokenizer)
        # Before the prompt is rendered: a refusal is to cost less than an answer.
        async with self.engine.admission.places(sampling.n) as places:
            return await self._start_chat(request, sampling, identity, make_writer, places)

    async def _start_chat(
        self,
        request: ChatRequest,
        sampling: SamplingParams,
        identity: ResponseIdentity,
        make_writer: Callable[[ResponseContext, ChatParsing], AnyWriter],
        places: Places,
    ) -> Started:
        prompt = await self.chat_prompt(request)
        if request.strict_max_tokens:
            await self.generator.check_room((prompt.token_ids,), sampling.max_tokens)
        state = prompt.state
        sampling = sampling.with_thinking(thinking_after(state))
        if not request.stop_in_reasoning:
            sampling = replace(sampling, stop_from=thinking_after(state))
        if request.max_thinking_tokens is not None:
            limit = thinking_limit(self.prompts.tokenizer, request.max_thinking_tokens, state)
            sampling = replace(sampling, thinking_limit=limit)
        context = ResponseContext(
            identity,
            (prompt.token_ids,),
            sampling.n,
            sampling=sampling,
            **request.context_options(),
        )
        parsing = ChatParsing(
            reasoning=None if request.separate_reasoning is False else state,
            has_reasoning=request.has_reasoning,
            has_tools=request.has_tools,
            tool_names=frozenset(function.name for function in request.functions),
            is_call_required=request.is_call_required,
            is_call_named=request.is_call_named,
            think_ids=think_ids(self.prompts.tokenizer),
        )
        requests = split_request(
            prompt.token_ids, sampling, seed_of(sampling), request.engine_options()
        )
        with own_names(_OF_CHAT):
            generation = await self.generator.start(requests, places)
        self.num_choices.observe(sampling.n)
        return generation, make_writer(context, parsing)

    async def _fingerprinted(self, identity: ResponseIdentity) -> ResponseIdentity:
        """The identity, with the name of the weights and numerics that answer."""
        fingerprint = (await self.engine.capabilities()).description.get("fingerprint")
        return replace(identity, system_fingerprint=str(fingerprint) if fingerprint else None)

    async def chat_prompt(self, request: ChatRequest) -> ChatPrompt:
        """The prompt that a chat request gives.

        Raises:
            InvalidRequestError: the template refuses the messages.
            ContextLengthError: it is far too long.
        """
        limit = await self.generator.max_prompt_tokens()
        with own_names(_OF_CHAT):
            prompt = await self.prompts.chat(
                request.template_messages(),
                request.encoding_limit(limit),
                tools=request.template_tools(),
                template_kwargs=request.template_kwargs(),
                add_generation_prompt=request.has_generation_prompt,
                continue_final_message=bool(request.continue_final_message),
            )
        return replace(prompt, token_ids=request.truncated(prompt.token_ids, limit))

    async def start_completion(self, request: CompletionRequest) -> Started:
        """Sends a text completion request, with one or several independent prompts.

        Raises:
            InvalidRequestError: it can't be served.
            CapacityError: the engines are full.
            EngineDeadError: no engine takes it.
        """
        self.check_model(request.model)
        sampling = request.sampling_params(self.defaults).tokenized(self.prompts.tokenizer)
        count = len(request.prompt) * sampling.n
        async with self.engine.admission.places(count) as places:
            prompts, writer = await self._completion(request, sampling)
            return await self._start_prompts(request, sampling, prompts, places), writer

    async def start_text(
        self,
        request: CompletionRequest,
        identity: ResponseIdentity,
        make_writer: Callable[[ResponseContext], AnyWriter],
    ) -> Started:
        """As `start_completion`, for a response of another API; it has one prompt and choice.

        Args:
            request: the request.
            identity: of its response.
            make_writer: makes the writer of its response.
        """
        sampling = request.sampling_params(self.defaults).tokenized(self.prompts.tokenizer)
        async with self.engine.admission.places(1) as places:
            prompts = await self.completion_prompts(request)
            context = ResponseContext(identity, prompts, **request.context_options())
            generation = await self._start_prompts(request, sampling, prompts, places)
        return generation, make_writer(context)

    async def _start_prompts(
        self,
        request: CompletionRequest,
        sampling: SamplingParams,
        prompts: Sequence[tuple[int, ...]],
        places: Places,
    ) -> Generation:
        seed, options = seed_of(sampling), request.engine_options()
        generation = await self.generator.start(
            [one for ids in prompts for one in split_request(ids, sampling, seed, options)], places
        )
        self.num_choices.observe(sampling.n, len(prompts))
        return generation

    async def complete_batch(self, request: CompletionRequest) -> CompletionResponse:
        """Runs the prompts of a text completion request as one true batch.

        Raises:
            UnsupportedBatchSizeError: another number of prompts than 1 or 16.
            InvalidRequestError: a prompt can't be served; none was begun.
            CapacityError: the engines are full.
            EngineDeadError: no engine takes it.
        """
        self.generator.check_batch_size(len(request.prompt))
        if request.is_stream or request.num_choices != 1:
            raise InvalidRequestError(
                "a batch is answered whole, with one choice per prompt; leave out stream and n",
                param="stream" if request.is_stream else "n",
            )
        self.check_model(request.model)
        sampling = request.sampling_params(self.defaults).tokenized(self.prompts.tokenizer)
        async with self.engine.admission.places(len(request.prompt)) as places:
            prompts, writer = await self._completion(request, sampling)
            seed, options = seed_of(sampling), request.engine_options()
            deltas = await self.generator.run_batch(
                [one for ids in prompts for one in split_request(ids, sampling, seed, options)],
                places,
            )
        events = [event for i, delta in enumerate(deltas) for event in writer.feed(i, delta)]
        return writer.whole([*events, *writer.finish()])

    async def completion_prompts(self, request: CompletionRequest) -> tuple[tuple[int, ...], ...]:
        """Token ids of the prompts of a text completion request.

        Raises:
            InvalidRequestError: a text isn't valid Unicode, or an id is no token.
            ContextLengthError: one is far too long.
        """
        limit = await self.generator.max_prompt_tokens()
        vocab_size = (await self.engine.capabilities()).vocab_size
        has_several = len(request.prompt) > 1
        for index, prompt in enumerate(request.prompt):
            if not isinstance(prompt, str):
                place = f"prompt[{index}]" if has_several else "prompt"
                check_ids(prompt, vocab_size, "prompt", place)
        return tuple(
            [
                request.truncated(
                    await self.prompts.encode(prompt, request.encoding_limit(limit)), limit
                )
                for prompt in request.prompt
            ]
        )

    async def _completion(
        self, request: CompletionRequest, sampling: SamplingParams
    ) -> tuple[tuple[tuple[int, ...], ...], CompletionWriter]:
        """Token ids of the prompts, and the writer of the response."""
        prompts = await self.completion_prompts(request)
        if request.strict_max_tokens:
            await self.generator.check_room(prompts, sampling.max_tokens)
        echo: tuple[str, ...] = ()
        if request.echo:
            texts = [
                prompt
                if isinstance(prompt, str) and request.truncate_prompt_tokens is None
                else self.prompts.tokenizer.decode(ids)
                for prompt, ids in zip(request.prompt, prompts, strict=True)
            ]
            echo = tuple(text for text in texts for _ in range(sampling.n))
        echo_tokens: tuple[str, ...] = ()
        if request.echoes_logprobs:
            first = [self.prompts.tokenizer.token_text(prompt[0]) for prompt in prompts]
            echo_tokens = tuple(text for text in first for _ in range(sampling.n))
        context = ResponseContext(
            await self._fingerprinted(ResponseIdentity.new("cmpl-", self.name)),
            prompts,
            sampling.n,
            sampling=sampling,
            **request.context_options(),
        )
        return prompts, CompletionWriter(context, echo, echo_tokens)
