"""A request between its acceptance and its answer."""

from __future__ import annotations

from dataclasses import dataclass

from deployments.generation import Generation
from qwen3_a8w8.openai.answer import Answer


@dataclass(frozen=True, slots=True)
class StartedAnswer:
    """A generation that the engines have accepted, and how it is to be written.

    Attributes:
        generation: its news; whoever reads them closes it.
        answer: writes them.
        num_per_prompt: sequences that share a prompt.
    """

    generation: Generation
    answer: Answer
    num_per_prompt: int

    @property
    def num_cached_tokens(self) -> int:
        """Cached prompt tokens, each prompt counted once."""
        return sum(self.generation.num_cached_tokens[:: self.num_per_prompt])
