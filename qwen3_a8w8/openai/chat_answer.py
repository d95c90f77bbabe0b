"""The answer to a chat completion request."""

from __future__ import annotations

from dataclasses import dataclass

from qwen3_a8w8.openai.answer import AnsweredRequest
from qwen3_a8w8.openai.chat_choice import ChatParsing
from qwen3_a8w8.openai.chat_collector import ChatCollector
from qwen3_a8w8.openai.chat_stream import ChatStream


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """Messages; implements `openai.answer.Answer`."""

    request: AnsweredRequest
    parsing: ChatParsing

    def stream(self) -> ChatStream:
        """As chunks."""
        return ChatStream(self.request, self.parsing)

    def collector(self) -> ChatCollector:
        """As one response."""
        return ChatCollector(self.request, self.parsing)
