"""The answer to a text completion request."""

from __future__ import annotations

from dataclasses import dataclass

from qwen3_a8w8.openai.answer import AnsweredRequest
from qwen3_a8w8.openai.completion_stream import CompletionCollector, CompletionStream


@dataclass(frozen=True, slots=True)
class CompletionAnswer:
    """Texts; implements `openai.answer.Answer`.

    Attributes:
        request: what is answered.
        echo_texts: for `echo`, what to put before each choice's text; one per choice.
        echo_tokens: for `echo` with log-probabilities, the first token of each choice's prompt.
    """

    request: AnsweredRequest
    echo_texts: tuple[str, ...] = ()
    echo_tokens: tuple[str, ...] = ()

    def stream(self) -> CompletionStream:
        """As chunks."""
        return CompletionStream(self.request, self.echo_texts)

    def collector(self) -> CompletionCollector:
        """As one response."""
        return CompletionCollector(self.request, self.echo_texts, self.echo_tokens)
