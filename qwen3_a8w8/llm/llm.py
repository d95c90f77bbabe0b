"""The class `LLM`: from prompts to requests, and from the engine's events to outputs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qwen3_a8w8.checkpoint.resolve import resolve_model
from qwen3_a8w8.closing import SelfClosing
from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.engine.engine import Engine
from qwen3_a8w8.engine.plan import RunnerCapabilities
from qwen3_a8w8.engine.request import EngineRequest, TokenEvent
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.engine.stats.engine_stats import EngineStats
from qwen3_a8w8.errors import ConfigError, InvalidRequestError, UnsupportedBatchSizeError
from qwen3_a8w8.runner.model_runner import ModelRunner
from qwen3_a8w8.text.chat_template import ChatTemplate
from qwen3_a8w8.text.generation_defaults import GenerationDefaults
from qwen3_a8w8.text.no_tokenizer import NoTokenizer, has_no_tokenizer
from qwen3_a8w8.text.output_processor import LogprobEntry, OutputDelta, OutputProcessor
from qwen3_a8w8.text.tokenizer import Tokenizer

Prompt = str | Sequence[int]
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


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer to a prompt.

    Attributes:
        index: 0 to n - 1.
        token_ids: generated ids, a stop token included.
        text: their text, without stop tokens and stop strings.
        finish_reason: "stop" or "length".
        logprobs: one entry per id, or None if they weren't asked for.
    """

    index: int
    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    logprobs: tuple[LogprobEntry, ...] | None


@dataclass(frozen=True, slots=True)
class GenerationOutput:
    """The answers to one prompt; the fields of the first are at hand directly.

    Attributes:
        prompt_token_ids: the prompt.
        completions: `n` answers.
        num_cached_tokens: prompt tokens that came from the prefix cache.
        prompt_logprobs: one entry per token of the prompt but the first, or None if they weren't
            asked for.
    """

    prompt_token_ids: tuple[int, ...]
    completions: tuple[Completion, ...]
    num_cached_tokens: int
    prompt_logprobs: tuple[LogprobEntry, ...] | None = None

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Of the first answer."""
        return self.completions[0].token_ids

    @property
    def text(self) -> str:
        """Of the first answer."""
        return self.completions[0].text

    @property
    def finish_reason(self) -> str:
        """Of the first answer."""
        return self.completions[0].finish_reason

    @property
    def logprobs(self) -> tuple[LogprobEntry, ...] | None:
        """Of the first answer."""
        return self.completions[0].logprobs


class OutputCollector:
    """Feeds the engine's events to one processor per sequence.

    Args:
        requests: what the engine runs.
        make_processor: gives the text side of one sequence.
    """

    def __init__(
        self,
        requests: Sequence[EngineRequest],
        make_processor: Callable[[SamplingParams], OutputProcessor],
    ) -> None:
        self._requests = requests
        self._processors = [
            [make_processor(request.sampling) for _ in range(request.sampling.n)]
            for request in requests
        ]
        self._deltas: list[list[list[OutputDelta]]] = [
            [[] for _ in range(request.sampling.n)] for request in requests
        ]
        self._num_cached = [0] * len(requests)

    def take(self, request_index: int, index: int, event: TokenEvent) -> bool:
        """Engine hook; True when a stop string has ended the sequence."""
        request = self._requests[request_index]
        delta = feed_event(self._processors[request_index][index], request.sampling, event)
        self._deltas[request_index][index].append(delta)
        self._num_cached[request_index] = event.num_cached_tokens
        return delta.is_stopped

    def outputs(self) -> list[GenerationOutput]:
        """Everything, in the order of the requests."""
        return [
            GenerationOutput(
                tuple(request.prompt_token_ids),
                tuple(
                    _completion(index, deltas, request.sampling)
                    for index, deltas in enumerate(per_sequence)
                ),
                num_cached,
                _prompt_logprobs(per_sequence[0], request.sampling),
            )
            for request, per_sequence, num_cached in zip(
                self._requests, self._deltas, self._num_cached, strict=True
            )
        ]


def feed_event(
    processor: OutputProcessor, sampling: SamplingParams, event: TokenEvent
) -> OutputDelta:
    """What an event of the engine adds to the text.

    Raises:
        Qwen3A8W8Error: the event's own, if the sequence has failed.
    """
    if event.error is not None:
        raise event.error
    reason = event.finish_reason
    return processor.feed(
        event.token_ids,
        event.logprobs if sampling.logprobs is not None else None,
        # Like clients of the API, the text side knows two ways to end: a deadline is a limit.
        "length" if reason == "timeout" else reason if reason in ("stop", "length") else None,
        event.prompt_tokens,
    )


def _completion(index: int, deltas: Sequence[OutputDelta], sampling: SamplingParams) -> Completion:
    has_logprobs = sampling.logprobs is not None
    return Completion(
        index=index,
        token_ids=tuple(i for delta in deltas for i in delta.token_ids),
        text="".join(delta.text for delta in deltas),
        finish_reason=next(d.finish_reason for d in deltas if d.finish_reason is not None),
        logprobs=tuple(e for delta in deltas for e in delta.logprobs) if has_logprobs else None,
    )


def _prompt_logprobs(
    deltas: Sequence[OutputDelta], sampling: SamplingParams
) -> tuple[LogprobEntry, ...] | None:
    if sampling.prompt_logprobs is None:
        return None
    return next((delta.prompt_logprobs for delta in deltas if delta.prompt_logprobs), ())


logger = logging.getLogger(__name__)


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
        collected = OutputCollector(requests, self._processor)
        self._engine.generate(requests, collected.take)
        return collected.outputs()

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
        sizes = self.capabilities.decode_batch_sizes
        if len(prompts) not in sizes:
            raise UnsupportedBatchSizeError(
                f"a batch has {len(prompts)} prompts, this model decodes batches of "
                f"{' or '.join(map(str, sizes))}; generate() takes any number",
                param="prompts",
                code="unsupported_batch_size",
            )
        requests = self._requests(prompts, sampling_params, priority, timeout_s, cache_salt)
        collected = OutputCollector(requests, self._processor)
        self._engine.generate_batch(requests, collected.take)
        return collected.outputs()

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
        processor = self._processor(request.sampling)
        events = self._engine.stream(request)
        try:
            for event in events:
                delta = feed_event(processor, request.sampling, event)
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

    def _processor(self, sampling: SamplingParams) -> OutputProcessor:
        return OutputProcessor(
            self.tokenizer,
            stop=sampling.stop,
            min_tokens=sampling.min_tokens,
            skip_special_tokens=sampling.skip_special_tokens,
            stop_token_ids={*self.capabilities.eos_token_ids, *sampling.stop_token_ids},
        )


def _close(events: Iterator[TokenEvent]) -> None:
    close = getattr(events, "close", None)
    if close is not None:
        close()
