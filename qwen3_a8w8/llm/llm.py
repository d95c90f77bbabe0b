"""The class `LLM`: from prompts to requests, and from the engine's events to outputs."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qwen3_a8w8.checkpoint.resolve import resolve_model
from qwen3_a8w8.closing import SelfClosing
from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.engine.admission.sequence_factory import check_batch_size
from qwen3_a8w8.engine.engine import Engine
from qwen3_a8w8.engine.plan import RunnerCapabilities
from qwen3_a8w8.engine.request import EngineRequest, TokenEvent
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.engine.stats.engine_stats import EngineStats
from qwen3_a8w8.errors import ConfigError, InvalidRequestError
from qwen3_a8w8.runner.model_runner import ModelRunner
from qwen3_a8w8.text.chat_template import ChatTemplate
from qwen3_a8w8.text.generation_defaults import GenerationDefaults
from qwen3_a8w8.text.no_tokenizer import NoTokenizer, has_no_tokenizer
from qwen3_a8w8.text.output_processor import OutputProcessor
from qwen3_a8w8.text.outputs import GenerationOutput, OutputDelta
from qwen3_a8w8.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

Prompt = str | Sequence[int]
"""Text, or token ids."""

Message = Mapping[str, Any]


def as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A list of prompts, also of a single one.

    Raises:
        InvalidRequestError: token ids stand among other prompts.
    """
    if isinstance(prompts, str):
        return [prompts]
    entries = list(prompts)
    if entries and all(isinstance(entry, int) for entry in entries):
        return [[int(str(entry)) for entry in entries]]
    return [entry if isinstance(entry, str) else list(_ids(entry)) for entry in entries]


def _ids(entry: int | str | Sequence[int]) -> Sequence[int]:
    if isinstance(entry, int | str):
        raise InvalidRequestError(
            f"prompts mixes token ids and other prompts, near {entry!r:.60}; pass a text, a list "
            "of ids, or a list of those",
            param="prompts",
        )
    return entry


class LLM(SelfClosing):
    """A model that is loaded, warm, and ready to generate in this process.

    Not thread-safe: one thread at a time may call. Usable as a context manager.

    Args:
        model: checkpoint directory, "demo" or hub id.
        settings: the fields of `EngineConfig`, e.g. `num_kv_blocks=256`.

    Raises:
        ConfigError: a setting is unknown or out of range.
        CheckpointError: the model can't be found or read.
        KernelUnavailableError: the device can't run here.
    """

    def __init__(self, model: str = "demo", **settings: Any) -> None:
        known = EngineConfig.__dataclass_fields__
        if unknown := sorted(settings.keys() - known.keys()):
            raise ConfigError(
                f"unknown settings {unknown}; EngineConfig has {', '.join(sorted(known))}"
            )
        for name in ("decode_batch_sizes", "enable"):
            if name in settings:
                settings[name] = tuple(settings[name])
        config = EngineConfig(**settings)
        directory = resolve_model(model)
        self.tokenizer: Tokenizer = NoTokenizer()
        self.chat_template: ChatTemplate | None = None
        if has_no_tokenizer(directory):
            logger.warning("%s has no tokenizer: prompts must be token ids", directory)
        else:
            self.tokenizer = Tokenizer.from_directory(directory)
            self.chat_template = ChatTemplate.from_directory(
                directory, special_tokens=self.tokenizer.special_tokens
            )
        self._defaults = GenerationDefaults.from_directory(directory)
        runner = ModelRunner.load(str(directory), config)
        self.capabilities: RunnerCapabilities = runner.capabilities
        self._runner = runner
        self._engine = Engine(runner, config)

    def default_sampling_params(self) -> SamplingParams:
        """What the checkpoint's generation_config.json recommends."""
        defaults = self._defaults
        return SamplingParams(
            temperature=defaults.temperature,
            top_p=defaults.top_p,
            top_k=defaults.top_k,
            min_p=defaults.min_p,
            repetition_penalty=defaults.repetition_penalty,
        )

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int = 0,
        timeout_s: float | None = None,
        cache_salt: str | None = None,
    ) -> list[GenerationOutput]:
        """Completes prompts; more than 16 queue.

        Args:
            prompts: one or more, each a text or a list of token ids.
            sampling_params: one for all, one per prompt, or None for the checkpoint's own.
            priority: lower values go first, beside what is streamed at the same time.
            timeout_s: seconds after which an answer ends as it is, with finish_reason "length".
            cache_salt: the prefix cache is shared only between calls with the same salt.

        Returns:
            One output per prompt, in their order.

        Raises:
            InvalidRequestError: a prompt or its parameters can't be served; none has run.
            RequestFailedError: the runner can't compute one of them; the engine goes on.
            EngineDeadError: the runner has failed.
        """
        requests = self._requests(prompts, sampling_params, priority, timeout_s, cache_salt)
        outputs = _Outputs(requests, self.tokenizer)
        self._engine.generate(requests, outputs.take)
        return outputs.collect()

    def generate_batch(
        self,
        prompts: Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int = 0,
        timeout_s: float | None = None,
        cache_salt: str | None = None,
    ) -> list[GenerationOutput]:
        """Completes exactly 1 or 16 prompts as one true batch.

        Args:
            prompts: as many as a decode batch has rows.
            sampling_params: as for `generate`; `n` must be 1.
            priority: as for `generate`.
            timeout_s: as for `generate`.
            cache_salt: as for `generate`.

        Returns:
            One output per prompt, in their order; equal to what `generate` gives.

        Raises:
            UnsupportedBatchSizeError: another number of prompts.
            InvalidRequestError: a prompt or its parameters can't be served; none has run.
            RequestFailedError: the runner can't compute one of them; the engine goes on.
            EngineDeadError: the runner has failed.
        """
        check_batch_size(len(prompts), self.capabilities.decode_batch_sizes)
        requests = self._requests(prompts, sampling_params, priority, timeout_s, cache_salt)
        outputs = _Outputs(requests, self.tokenizer)
        self._engine.generate_batch(requests, outputs.take)
        return outputs.collect()

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        priority: int = 0,
        timeout_s: float | None = None,
        cache_salt: str | None = None,
    ) -> Iterator[OutputDelta]:
        """Yields what each step adds to one answer; closing the iterator aborts it.

        Args:
            prompt: text or token ids.
            sampling_params: with `n` = 1; None for the checkpoint's own.
            priority: as for `generate`.
            timeout_s: as for `generate`.
            cache_salt: as for `generate`.

        Raises:
            InvalidRequestError: the prompt or its parameters can't be served.
            RequestFailedError: the runner can't compute one of them; the engine goes on.
            EngineDeadError: the runner has failed.
        """
        (request,) = self._requests([prompt], sampling_params, priority, timeout_s, cache_salt)
        if request.sampling.n != 1:
            raise InvalidRequestError("stream gives one answer; n must be 1", param="n")
        processor = OutputProcessor(self.tokenizer, request.sampling)
        events = self._engine.stream(request)
        try:
            for event in events:
                delta = processor.feed(event)
                yield delta
                if delta.finish_reason is not None:
                    return
        finally:
            _close(events)

    def chat_prompt(self, messages: Sequence[Message], **template_kwargs: Any) -> list[int]:
        """Token ids of a conversation, ready for the assistant's answer.

        Args:
            messages: role and content, as in OpenAI's API.
            template_kwargs: for the chat template, e.g. `enable_thinking=False`.

        Raises:
            InvalidRequestError: the checkpoint has no chat template, or it refuses.
        """
        if self.chat_template is None:
            raise InvalidRequestError(
                "the checkpoint has no chat template; pass plain prompts to generate()"
            )
        return self.tokenizer.encode(
            self.chat_template.render(messages, template_kwargs=template_kwargs)
        )

    def stats(self) -> EngineStats:
        """What the engine holds and has done."""
        return self._engine.stats()

    def close(self) -> None:
        """Gives memory and threads back. Idempotent."""
        self._engine.close()

    def _requests(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        priority: int,
        timeout_s: float | None,
        cache_salt: str | None,
    ) -> list[EngineRequest]:
        many = as_prompts(prompts)
        if sampling_params is None:
            sampling_params = self.default_sampling_params()
        if isinstance(sampling_params, SamplingParams):
            params: Sequence[SamplingParams] = [sampling_params] * len(many)
        else:
            params = sampling_params
        tokenized = {
            id(sampling): sampling.tokenized(self.tokenizer) if sampling.bad_words else sampling
            for sampling in params
        }
        params = [tokenized[id(sampling)] for sampling in params]
        if len(params) != len(many):
            raise InvalidRequestError(
                f"{len(params)} sampling params for {len(many)} prompts; give one, or one each",
                param="sampling_params",
            )
        for sampling in {id(sampling): sampling for sampling in params}.values():
            if sampling.structured is not None:
                self._runner.prepare_grammar(sampling.structured)
        return [
            EngineRequest(
                tuple(self._encode(prompt)),
                sampling,
                priority=priority,
                timeout_s=timeout_s,
                cache_salt=cache_salt,
            )
            for prompt, sampling in zip(many, params, strict=True)
        ]

    def _encode(self, prompt: Prompt) -> Sequence[int]:
        return self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt


class _Outputs:
    """The outputs of one call as they grow: an `EventHook` of the engine.

    Args:
        requests: what the engine runs.
        tokenizer: of the model.
    """

    def __init__(self, requests: Sequence[EngineRequest], tokenizer: Tokenizer) -> None:
        self._requests = requests
        self._processors = [
            [OutputProcessor(tokenizer, request.sampling) for _ in range(request.sampling.n)]
            for request in requests
        ]
        self._deltas: list[list[list[OutputDelta]]] = [
            [[] for _ in range(request.sampling.n)] for request in requests
        ]

    def take(self, request_index: int, index: int, event: TokenEvent) -> bool:
        """Takes an event of the engine; returns whether a stop string has ended the sequence."""
        delta = self._processors[request_index][index].feed(event)
        self._deltas[request_index][index].append(delta)
        return delta.is_stopped

    def collect(self) -> list[GenerationOutput]:
        """Everything, in the order of the requests."""
        return [
            GenerationOutput.collect(
                request.prompt_token_ids,
                deltas,
                has_logprobs=request.sampling.logprobs is not None,
                has_prompt_logprobs=request.sampling.prompt_logprobs is not None,
            )
            for request, deltas in zip(self._requests, self._deltas, strict=True)
        ]


def _close(events: Iterator[TokenEvent]) -> None:
    close = getattr(events, "close", None)
    if close is not None:
        close()
