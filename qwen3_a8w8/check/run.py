"""Runs the quality gate on one model: outputs, predictions, and bit equality.

The order is: greedy outputs computed in every way (alone, in a batch of 16, from
the prefix cache, with small prefill chunks), then the float model on the same
tokens, then the comparison. At most one model is in memory at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qwen3_a8w8.check.logits import sequence_logits
from qwen3_a8w8.check.material import Material, differences
from qwen3_a8w8.check.prompts import VERSION
from qwen3_a8w8.check.reference import FloatReference, log_softmax_rows
from qwen3_a8w8.check.repetition import find_repetition
from qwen3_a8w8.check.report import (
    CheckReport,
    Limits,
    OutputReport,
    TextsReport,
    find_problems,
)
from qwen3_a8w8.checkpoint.checkpoint import open_checkpoint
from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.errors import CheckpointError, ConfigError, EngineDeadError
from qwen3_a8w8.llm import LLM, GenerationOutput
from qwen3_a8w8.runner.model_runner import ModelRunner

BLOCK_SIZE = 32
"""Small, so that even short prompts have a block for the prefix cache."""

SMALL_CHUNK = 16
"""Prefill chunk of the chunked run, smaller than most prompts."""

Output = tuple[tuple[int, ...], tuple[float, ...]]
"""Token ids of one output and their log-probabilities, for bitwise comparison."""


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """Settings of a check.

    Attributes:
        tokens: output lengths at which outputs are evaluated; the largest is generated.
        device: as in `EngineConfig`.
        num_threads: as in `EngineConfig`.
        isa: as in `EngineConfig`.
        enable: experimental flags.
        limits: limits for failure.
    """

    tokens: tuple[int, ...] = (16, 48)
    device: str = "auto"
    num_threads: int | None = None
    isa: str | None = None
    enable: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        """Checks the lengths.

        Raises:
            ConfigError: there is none, or one isn't positive.
        """
        if not self.tokens or min(self.tokens) < 1:
            raise ConfigError(f"tokens are {self.tokens}, expected positive output lengths")


def run_check(
    model: Path,
    material: Material,
    settings: CheckSettings,
    *,
    reference: Path | None = None,
    golden: Sequence[Sequence[int]] | None = None,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> CheckReport:
    """Checks a model.

    Args:
        model: directory of its checkpoint.
        material: prompts and texts in its tokens.
        settings: lengths, device, flags and limits.
        reference: directory of the floating-point model it was quantised from, if any.
        golden: outputs of an earlier run to compare with.
        on_stage: called with the name of each stage at its start.

    Returns:
        The report; `problems` says whether it passed.

    Raises:
        CheckpointError: a checkpoint can't be read, the reference is another model, or the
            model's values aren't finite (names the layer).
        ConfigError: the model doesn't fit into memory.
    """
    with open_checkpoint(model) as checkpoint:
        fingerprint, format_name, config = (
            checkpoint.fingerprint,
            checkpoint.format,
            checkpoint.config,
        )
    longest = max(map(len, material.prompts)) + max(settings.tokens)
    longest = max(longest, *map(len, material.texts)) + 1
    blocks_per_seq = -(-longest // BLOCK_SIZE) + 1
    engine: dict[str, Any] = {
        "device": settings.device,
        "num_threads": settings.num_threads,
        "isa": settings.isa,
        "enable": settings.enable,
        "block_size": BLOCK_SIZE,
        "max_model_len": min(config.context_length, blocks_per_seq * BLOCK_SIZE),
        "num_kv_blocks": 2 * len(material.prompts) * blocks_per_seq + 1,
    }
    try:
        on_stage("greedy outputs")
        greedy, texts, invariance = _outputs(model, material, settings, engine)
        on_stage("predictions")
        logprobs, backend = _logprobs(model, material, engine)
    except EngineDeadError as error:
        raise _not_finite(model, material, error) from error
    except ValueError as error:
        raise _not_finite(model, material, error) from error
    outputs = [ids for ids, _ in greedy]
    agreements: list[list[bool]] | None = None
    if reference is not None:
        on_stage("float reference")
        text_report, agreements = _compare(
            reference, config.vocab_size, material, outputs, logprobs
        )
    else:
        text_report = TextsReport(_num_predictions(material), _perplexity(material, logprobs))
    report = CheckReport(
        model=str(model),
        fingerprint=fingerprint,
        format=format_name,
        flags=settings.enable,
        backend=backend,
        prompt_set=VERSION,
        tokens=settings.tokens,
        outputs=tuple(
            _output(ids, text, agreements[i] if agreements is not None else None, settings.tokens)
            for i, (ids, text) in enumerate(zip(outputs, texts, strict=True))
        ),
        texts=text_report,
        invariance=invariance,
        golden_differences=None if golden is None else differences(outputs, golden),
    )
    return replace(report, problems=find_problems(report, settings.limits))


def _outputs(
    model: Path, material: Material, settings: CheckSettings, engine: dict[str, Any]
) -> tuple[list[Output], list[str], dict[str, bool]]:
    sampling = SamplingParams(temperature=0, max_tokens=max(settings.tokens), logprobs=0)
    prompts = [list(prompt) for prompt in material.prompts]
    with LLM(str(model), **engine) as llm:
        alone = [llm.generate([prompt], sampling)[0] for prompt in prompts]
        greedy = [_bits(output) for output in alone]
        cached = [llm.generate([prompt], sampling)[0] for prompt in prompts]
        batch = llm.generate_batch(prompts, sampling)
    with LLM(str(model), **engine, prefill_chunk_tokens=SMALL_CHUNK) as llm:
        chunked = llm.generate(prompts, sampling)
    can_be_cached = max(map(len, prompts)) > BLOCK_SIZE
    invariance = {
        "a batch of 16": [_bits(output) for output in batch] == greedy,
        "the prefix cache": [_bits(output) for output in cached] == greedy
        and (any(output.num_cached_tokens for output in cached) or not can_be_cached),
        "chunked prefill": [_bits(output) for output in chunked] == greedy,
    }
    return greedy, [output.text for output in alone], invariance


def _bits(output: GenerationOutput) -> Output:
    entries = output.logprobs or ()
    return output.token_ids, tuple(entry.sampled.logprob for entry in entries)


def _logprobs(
    model: Path, material: Material, engine: dict[str, Any]
) -> tuple[list[Tensor], dict[str, str | int | float]]:
    runner = ModelRunner.load(str(model), EngineConfig(**engine))
    try:
        logprobs = []
        for text in material.texts:
            logits = sequence_logits(runner, text)
            if not bool(torch.isfinite(logits).all()):
                raise ValueError("logits of a text aren't finite")
            logprobs.append(torch.log_softmax(logits, dim=-1))
        return logprobs, dict(runner.capabilities.description)
    finally:
        runner.close()


def _not_finite(model: Path, material: Material, error: Exception) -> CheckpointError:
    with open_checkpoint(model) as checkpoint:
        for ids in (*material.prompts, *material.texts):
            place = FloatReference(checkpoint).first_not_finite(ids)
            if place is not None:
                return CheckpointError(
                    f"{model}: expected finite values, found NaN or infinity at {place}; the "
                    "checkpoint is damaged or its scales overflow"
                )
    return CheckpointError(
        f"{model}: {error}; the same weights are finite in float32, so a kernel is broken"
    )


def _num_predictions(material: Material) -> int:
    return sum(len(text) - 1 for text in material.texts)


def _perplexity(material: Material, logprobs: Sequence[Tensor]) -> float:
    total = 0.0
    for text, rows in zip(material.texts, logprobs, strict=True):
        targets = torch.tensor(text[1:])[:, None]
        total -= float(rows[:-1].gather(1, targets).double().sum())
    return math.exp(total / _num_predictions(material))


def _compare(
    reference: Path,
    vocab_size: int,
    material: Material,
    outputs: Sequence[Sequence[int]],
    logprobs: Sequence[Tensor],
) -> tuple[TextsReport, list[list[bool]]]:
    pairs = list(zip(material.prompts, outputs, strict=True))
    sequences = [*material.texts, *((*prompt, *ids) for prompt, ids in pairs)]
    with open_checkpoint(reference) as checkpoint:
        if checkpoint.config.vocab_size != vocab_size:
            raise CheckpointError(
                f"{reference}: has a vocabulary of {checkpoint.config.vocab_size}, expected "
                f"{vocab_size} as in the checked model; pass the model that it was quantised from"
            )
        model = FloatReference(checkpoint)
        hidden = model.final_hidden(sequences)
        lm_head = model.lm_head()
    nll = kl = 0.0
    num_same = num_positions = 0
    for text, found, states in zip(material.texts, logprobs, hidden, strict=False):
        expected = torch.cat(list(log_softmax_rows(states, lm_head)))
        nll -= float(expected[:-1].gather(1, torch.tensor(text[1:])[:, None]).double().sum())
        kl += float((expected.exp() * (expected - found)).double().sum())
        num_same += int((expected.argmax(dim=-1) == found.argmax(dim=-1)).sum())
        num_positions += len(text)
    report = TextsReport(
        num_tokens=_num_predictions(material),
        perplexity=_perplexity(material, logprobs),
        reference_perplexity=math.exp(nll / _num_predictions(material)),
        agreement=num_same / num_positions,
        kl=kl / num_positions,
    )
    agreements = []
    for (prompt, ids), states in zip(pairs, hidden[len(material.texts) :], strict=True):
        # The state before each generated token predicts it.
        choosing = states[len(prompt) - 1 : len(prompt) - 1 + len(ids)]
        rows = [chunk.argmax(dim=-1) for chunk in log_softmax_rows(choosing, lm_head)]
        agreements.append((torch.cat(rows) == torch.tensor(ids)).tolist())
    return report, agreements


def _output(
    ids: Sequence[int], text: str, same: list[bool] | None, lengths: Sequence[int]
) -> OutputReport:
    return OutputReport(
        token_ids=tuple(ids),
        text=text,
        repetition={length: find_repetition(ids[:length]) for length in lengths},
        agreement={
            length: None if same is None else sum(same[:length]) / max(1, len(same[:length]))
            for length in lengths
        },
    )
