"""The result of a check, and the limits for failure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits beyond which a check fails.

    Attributes:
        max_repetition: largest share of prompts whose output may loop.
        min_agreement: least top-1 agreement with the float model, as a share of tokens.
        max_kl: largest mean KL divergence from the float model, in nats per token.
        max_perplexity_ratio: largest perplexity, as a multiple of the float model's.
    """

    max_repetition: float = 0.25
    min_agreement: float = 0.8
    max_kl: float = 0.1
    max_perplexity_ratio: float = 1.1


@dataclass(frozen=True, slots=True)
class OutputReport:
    """The greedy output for one prompt.

    Attributes:
        token_ids: generated ids.
        text: decoded ids; empty without a tokenizer.
        repetition: by number of tokens, the first repetition within them; None without one.
        agreement: by number of tokens, the share of them that the float model chooses too; None
            without a reference.
    """

    token_ids: tuple[int, ...]
    text: str
    repetition: Mapping[int, str | None]
    agreement: Mapping[int, float | None]


@dataclass(frozen=True, slots=True)
class TextsReport:
    """Predictions on the fixed texts.

    Attributes:
        num_tokens: predictions compared.
        perplexity: of the checked model.
        reference_perplexity: of the float model; this and the following are None without one.
        agreement: share of positions with the same top-1 token.
        kl: mean KL divergence of the checked model from the float model, in nats.
    """

    num_tokens: int
    perplexity: float
    reference_perplexity: float | None = None
    agreement: float | None = None
    kl: float | None = None


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The whole result.

    Attributes:
        model: path of the checked model.
        fingerprint: of its checkpoint.
        format: of its checkpoint.
        flags: enabled experimental flags.
        backend: description of the backend.
        prompt_set: version of the fixed material.
        tokens: output lengths at which outputs were evaluated.
        outputs: one per prompt.
        texts: predictions on the fixed texts.
        invariance: by way of computing, whether it gave the same bits as the plain one.
        golden_differences: prompts whose output differs from the golden file, with the position
            of the first difference; None if there was no golden file.
        problems: reasons why the check failed, a sentence each; empty if it passed.
    """

    model: str
    fingerprint: str
    format: str
    flags: tuple[str, ...]
    backend: Mapping[str, str | int | float]
    prompt_set: int
    tokens: tuple[int, ...]
    outputs: tuple[OutputReport, ...]
    texts: TextsReport
    invariance: Mapping[str, bool]
    golden_differences: Mapping[int, int] | None = None
    problems: tuple[str, ...] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready fields."""
        return asdict(self)

    def repetition_share(self, num_tokens: int) -> float:
        """Share of the prompts with a repetition in the first `num_tokens`."""
        return _mean([output.repetition[num_tokens] is not None for output in self.outputs])

    def agreement(self, num_tokens: int) -> float | None:
        """Mean share of the first `num_tokens` that the float model chooses too."""
        values = [output.agreement[num_tokens] for output in self.outputs]
        known = [value for value in values if value is not None]
        return _mean(known) if known else None


def find_problems(report: CheckReport, limits: Limits) -> tuple[str, ...]:
    """Reasons why a report is a failure, a sentence each."""
    problems = [f"{name} changes bits" for name, same in report.invariance.items() if not same]
    for tokens in report.tokens:
        share = report.repetition_share(tokens)
        if share > limits.max_repetition:
            problems.append(
                f"{share:.0%} of the outputs have repetitions within {tokens} tokens, at most "
                f"{limits.max_repetition:.0%} is allowed"
            )
        agreement = report.agreement(tokens)
        if agreement is not None and agreement < limits.min_agreement:
            problems.append(
                f"outputs of {tokens} tokens agree with the float model on {agreement:.1%}, at "
                f"least {limits.min_agreement:.1%} are needed"
            )
    texts = report.texts
    if texts.agreement is not None and texts.agreement < limits.min_agreement:
        problems.append(
            f"top-1 tokens on the texts agree with the float model on {texts.agreement:.1%}, at "
            f"least {limits.min_agreement:.1%} are needed"
        )
    if texts.kl is not None and texts.kl > limits.max_kl:
        problems.append(f"KL divergence is {texts.kl:.4f}, at most {limits.max_kl:g} is allowed")
    if texts.reference_perplexity is not None:
        ratio = texts.perplexity / texts.reference_perplexity
        if ratio > limits.max_perplexity_ratio:
            problems.append(
                f"perplexity is {ratio:.3f} times the float model's, at most "
                f"{limits.max_perplexity_ratio:g} is allowed"
            )
    if report.golden_differences:
        problems.append(
            f"{len(report.golden_differences)} outputs differ from the golden file, the first at "
            f"prompt {min(report.golden_differences)}"
        )
    return tuple(problems)


def _mean(values: list[Any]) -> float:
    return sum(values) / len(values) if values else 0.0
