"""Results of a generation: deltas while it runs, and complete outputs.

`LLM`, the handle of the deployment and every HTTP route use these classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token with its log-probability.

    Attributes:
        token_id: the id.
        token: its text; bytes that aren't valid UTF-8 are written as backslash escapes.
        token_bytes: its bytes, so that a character split over tokens can be assembled.
        logprob: natural logarithm.
    """

    token_id: int
    token: str
    token_bytes: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class LogprobEntry:
    """Log-probabilities at one position.

    Attributes:
        sampled: the sampled token.
        top: the most likely ones, most likely first.
        text_offset: characters of the sequence's text that were complete before this token.
    """

    sampled: TokenLogprob
    top: tuple[TokenLogprob, ...]
    text_offset: int


@dataclass(frozen=True, slots=True)
class OutputDelta:
    """What one event adds to a sequence's output.

    Attributes:
        text: new text; may be empty while a character or a possible stop string is incomplete.
        token_ids: the output ids, including the one that ended the sequence.
        logprobs: one entry per token id, or empty if not requested.
        finish_reason: set once, on the last delta.
        stop_reason: the stop string or the stop token id that ended the sequence, or None.
        is_stopped: a stop string ended the text, so the engine must abort the sequence.
        prompt_logprobs: of the prompt's tokens from the second, if requested; in the first delta
            that has tokens. `text_offset` counts from the second token.
        num_cached_tokens: prompt tokens from the prefix cache; in the same delta.
    """

    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[LogprobEntry, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    is_stopped: bool = False
    prompt_logprobs: tuple[LogprobEntry, ...] = ()
    num_cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Completion:
    """One completion of a prompt.

    Attributes:
        index: 0 to n - 1.
        token_ids: generated ids, including a stop token.
        text: their text, without stop tokens and stop strings.
        finish_reason: "stop" or "length".
        logprobs: one entry per id, or None if not requested.
    """

    index: int
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    logprobs: tuple[LogprobEntry, ...] | None


@dataclass(frozen=True, slots=True)
class GenerationOutput:
    """The completions of one prompt; the fields of the first are also properties.

    Attributes:
        prompt_token_ids: the prompt.
        completions: `n` completions.
        num_cached_tokens: prompt tokens from the prefix cache.
        prompt_logprobs: one entry per token of the prompt from the second, or None if not
            requested.
    """

    prompt_token_ids: tuple[int, ...]
    completions: tuple[Completion, ...]
    num_cached_tokens: int
    prompt_logprobs: tuple[LogprobEntry, ...] | None = None

    @classmethod
    def collect(
        cls,
        prompt_token_ids: Sequence[int],
        deltas: Sequence[Sequence[OutputDelta]],
        *,
        has_logprobs: bool,
        has_prompt_logprobs: bool,
    ) -> GenerationOutput:
        """Joins the deltas of finished completions.

        Args:
            prompt_token_ids: the prompt.
            deltas: of each completion, in order, up to the one with its finish reason.
            has_logprobs: whether log-probabilities of the output were requested.
            has_prompt_logprobs: whether those of the prompt were requested.
        """
        of_prompt = next((d.prompt_logprobs for d in deltas[0] if d.prompt_logprobs), ())
        return cls(
            tuple(prompt_token_ids),
            tuple(_completion(index, each, has_logprobs) for index, each in enumerate(deltas)),
            sum(delta.num_cached_tokens for delta in deltas[0]),
            of_prompt if has_prompt_logprobs else None,
        )

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Of the first completion."""
        return self.completions[0].token_ids

    @property
    def text(self) -> str:
        """Of the first completion."""
        return self.completions[0].text

    @property
    def finish_reason(self) -> FinishReason:
        """Of the first completion."""
        return self.completions[0].finish_reason

    @property
    def logprobs(self) -> tuple[LogprobEntry, ...] | None:
        """Of the first completion."""
        return self.completions[0].logprobs


def _completion(index: int, deltas: Sequence[OutputDelta], has_logprobs: bool) -> Completion:
    return Completion(
        index=index,
        token_ids=tuple(token_id for delta in deltas for token_id in delta.token_ids),
        text="".join(delta.text for delta in deltas),
        finish_reason=next(d.finish_reason for d in deltas if d.finish_reason is not None),
        logprobs=tuple(e for delta in deltas for e in delta.logprobs) if has_logprobs else None,
    )
