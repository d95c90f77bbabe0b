"""The requests of a run: random prompts of given lengths, or prompts from a file.

The rules of each dataset are those of `vllm bench serve`; the random numbers are our own, so the
same seed gives the same requests here, not vLLM's.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from qwen3_a8w8.bench.serve.dataset_settings import DatasetSettings
from qwen3_a8w8.bench.serve.text_codec import TextCodec
from qwen3_a8w8.errors import CheckpointError, ConfigError
from qwen3_a8w8.text.chat_template import ChatTemplate
from qwen3_a8w8.text.tokenizer import Tokenizer

MIN_TOKENS = 4
MAX_PROMPT_TOKENS = 1024
MAX_TOTAL_TOKENS = 2048
"""Conversations of a ShareGPT file outside these bounds are left out, as everywhere."""

_MAX_CORRECTIONS = 10
_MAX_CONCURRENT = 16

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One request to send.

    Attributes:
        prompt: text.
        prompt_len: its tokens, by the tokenizer at hand.
        output_len: tokens to generate.
    """

    prompt: str
    prompt_len: int
    output_len: int


async def load_requests(
    settings: DatasetSettings, codec: TextCodec, *, is_chat: bool
) -> list[SampleRequest]:
    """The requests, `num_prompts` of them.

    Args:
        settings: which.
        codec: counts tokens.
        is_chat: the server applies the chat template.

    Raises:
        ConfigError: the file can't be read or has no usable prompt, or a length is missing.
    """
    if settings.dataset_name == "random":
        return await _random_requests(settings, codec)
    if settings.dataset_name == "sharegpt":
        found = await _sharegpt_requests(settings, codec)
    else:
        found = await _custom_requests(settings, codec, is_chat=is_chat)
    if not found:
        raise ConfigError(f"--dataset-path {settings.dataset_path}: it has no usable prompt")
    if len(found) < settings.num_prompts and not settings.no_oversample:
        more = random.Random(settings.seed).choices(found, k=settings.num_prompts - len(found))
        found += more
    return found


async def _random_requests(settings: DatasetSettings, codec: TextCodec) -> list[SampleRequest]:
    rng = np.random.default_rng(settings.seed)
    input_ratio, output_ratio = settings.range_ratios
    count = settings.num_prompts
    input_lens = _lengths(rng, settings.input_tokens, input_ratio, count)
    output_lens = _lengths(rng, settings.output_tokens or 1, output_ratio, count)
    vocabulary = np.asarray(await codec.vocabulary(), dtype=np.int64)
    prefix = rng.choice(vocabulary, settings.random_prefix_len).tolist()
    seeds = rng.integers(0, 2**63, count)

    async def make(index: int) -> SampleRequest:
        own = np.random.default_rng(seeds[index])
        length = len(prefix) + input_lens[index]
        prompt, prompt_len = await _prompt_of(codec, prefix, length, vocabulary, own)
        return SampleRequest(prompt, prompt_len, output_lens[index])

    return await _gather(make, range(count))


def _lengths(rng: np.random.Generator, mean: int, ratio: float, count: int) -> list[int]:
    """Uniform in [mean * (1 - ratio), mean * (1 + ratio)], at least 1."""
    low, high = math.floor(mean * (1 - ratio)), math.ceil(mean * (1 + ratio))
    return [int(n) for n in rng.integers(max(1, low), max(1, high) + 1, count)]


async def _prompt_of(
    codec: TextCodec,
    prefix: Sequence[int],
    length: int,
    vocabulary: NDArray[np.int64],
    rng: np.random.Generator,
) -> tuple[str, int]:
    """A text of exactly `length` tokens, and that number; nearly so if the tokenizer won't.

    The text of random tokens may be other tokens when read again (two may join), so it is cut or
    completed until the length is right.
    """
    token_ids = [*prefix, *rng.choice(vocabulary, length - len(prefix)).tolist()]
    for _ in range(_MAX_CORRECTIONS):
        prompt = await codec.decode(token_ids)
        token_ids = await codec.encode(prompt)
        if len(token_ids) == length:
            break
        missing = max(0, length - len(token_ids))
        token_ids = [*token_ids[:length], *rng.choice(vocabulary, missing).tolist()]
    return prompt, len(token_ids)


async def _sharegpt_requests(settings: DatasetSettings, codec: TextCodec) -> list[SampleRequest]:
    content = _json(settings.dataset_path, lambda text: json.loads(text))
    try:
        pairs = [
            (str(turns[0]["value"]), str(turns[1]["value"]))
            for entry in content
            if len(turns := entry.get("conversations") or []) >= 2
        ]
    except (TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"--dataset-path {settings.dataset_path}: not in ShareGPT's format, a list of "
            f'{{"conversations": [{{"value": ...}}, ...]}}: {error!r}'
        ) from error
    _shuffle(settings, pairs)
    found: list[SampleRequest] = []
    for prompt, answer in pairs:
        if len(found) == settings.num_prompts:
            break
        prompt_len = len(await codec.encode(prompt))
        output_len = settings.output_tokens
        is_fixed = output_len is not None
        if output_len is None:
            output_len = len(await codec.encode(answer))
        if (
            MIN_TOKENS <= prompt_len <= MAX_PROMPT_TOKENS
            and (is_fixed or output_len >= MIN_TOKENS)
            and prompt_len + output_len <= MAX_TOTAL_TOKENS
        ):
            found.append(SampleRequest(prompt, prompt_len, output_len))
    return found


async def _custom_requests(
    settings: DatasetSettings, codec: TextCodec, *, is_chat: bool
) -> list[SampleRequest]:
    lines = _json(
        settings.dataset_path,
        lambda text: [json.loads(line) for line in text.splitlines() if line.strip()],
    )
    render = _renderer(settings, codec, is_chat=is_chat)
    _shuffle(settings, lines)
    found = []
    for line in lines[: settings.num_prompts]:
        if not isinstance(line, dict) or not isinstance(line.get("prompt"), str):
            raise ConfigError(
                f"--dataset-path {settings.dataset_path}: expected lines with a text `prompt`, "
                f"found {line!r:.80}"
            )
        output_len = settings.output_tokens or line.get("output_tokens")
        if not isinstance(output_len, int) or output_len < 1:
            raise ConfigError(
                f"--dataset-path {settings.dataset_path}: `output_tokens` is {output_len!r} for "
                f"{line['prompt']!r:.40}, expected a positive integer; or give --output-len"
            )
        prompt = render(line["prompt"])
        found.append(SampleRequest(prompt, len(await codec.encode(prompt)), output_len))
    return found


def _renderer(
    settings: DatasetSettings, codec: TextCodec, *, is_chat: bool
) -> Callable[[str], str]:
    """Makes the text that is sent of a prompt: as a user's message for the text API."""
    if is_chat or settings.skip_chat_template:
        return lambda prompt: prompt
    remedy = (
        "give --tokenizer DIR of a Qwen3 checkpoint, --skip-chat-template, or --backend openai-chat"
    )
    if codec.directory is None:
        raise ConfigError(f"no chat template is at hand for the prompts; {remedy}")
    try:
        special_tokens = Tokenizer.from_directory(codec.directory).special_tokens
        template = ChatTemplate.from_directory(codec.directory, special_tokens=special_tokens)
    except CheckpointError as error:
        raise ConfigError(f"the chat template can't be used: {error}; {remedy}") from error
    if template is None:
        raise ConfigError(f"{codec.directory} has no chat template; {remedy}")
    return lambda prompt: template.render([{"role": "user", "content": prompt}])


def _shuffle(settings: DatasetSettings, entries: list[Any]) -> None:
    if not settings.disable_shuffle:
        random.Random(settings.seed).shuffle(entries)


def _json(path: Path | None, parse: Callable[[str], Any]) -> list[Any]:
    assert path is not None  # the settings have checked it
    try:
        content = parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--dataset-path {path}: can't be read: {error}") from error
    if not isinstance(content, list):
        raise ConfigError(f"--dataset-path {path}: expected a list, found {type(content).__name__}")
    return content


async def _gather(make: Callable[[int], Awaitable[_T]], indices: Iterable[int]) -> list[_T]:
    """All results in order; a server's tokenizer gets a bounded number of calls at a time."""
    limit = asyncio.Semaphore(_MAX_CONCURRENT)

    async def one(index: int) -> _T:
        async with limit:
            return await make(index)

    return list(await asyncio.gather(*map(one, indices)))
