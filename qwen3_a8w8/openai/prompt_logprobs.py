"""Log-probabilities of prompts in vLLM's format.

One entry per token, null for the first: by token id, the token itself and the most likely
ones at its position. `rank` counts from the most likely; null for a token that isn't among them.
"""

from __future__ import annotations

from collections.abc import Sequence

from qwen3_a8w8.openai.response import ResponseModel
from qwen3_a8w8.text.outputs import LogprobEntry


class PromptLogprob(ResponseModel):
    """One token at one position of a prompt."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]


def make_prompt_logprobs(entries: Sequence[LogprobEntry]) -> PromptLogprobs:
    """Converts the entries of a prompt's tokens from the second, and adds null for the first."""
    return [None, *map(_by_token_id, entries)]


def _by_token_id(entry: LogprobEntry) -> dict[str, PromptLogprob]:
    found = {
        str(token.token_id): PromptLogprob(
            logprob=token.logprob, rank=rank, decoded_token=token.token
        )
        for rank, token in enumerate(entry.top, start=1)
    }
    own = entry.sampled
    found.setdefault(
        str(own.token_id),
        PromptLogprob(logprob=own.logprob, rank=None, decoded_token=own.token),
    )
    return found
