"""One choice of a chat completion: output deltas split into the parts of a message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from qwen3_a8w8.openai.chat_response import ChatFinishReason
from qwen3_a8w8.text.output import LogprobEntry, OutputDelta
from qwen3_a8w8.text.reasoning import ReasoningParser, ReasoningState
from qwen3_a8w8.text.tool_calls import ToolCall, ToolCallParser, new_call_id


@dataclass(frozen=True, slots=True)
class ChatParsing:
    """How answers of one request are split.

    Attributes:
        reasoning: state that the prompt leaves the answer in (`reasoning.initial_state`), or
            None to leave think blocks in the content.
        has_tools: look for tool calls.
        is_call_named: the request named the function to call; the answer then ends with "stop",
            as OpenAI's do.
        make_call_id: gives a call its id.
    """

    reasoning: ReasoningState | None = ReasoningState.UNDECIDED
    has_tools: bool = False
    is_call_named: bool = False
    make_call_id: Callable[[], str] = new_call_id


@dataclass(frozen=True, slots=True)
class ChatPiece:
    """What one output delta adds to the message; `finish_reason` comes with the last."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[ToolCall, ...] = ()
    logprobs: tuple[LogprobEntry, ...] = ()
    finish_reason: ChatFinishReason | None = None


class ChatChoice:
    """Parsers and counters of one choice.

    Attributes:
        num_tokens: output tokens so far.
        finish_reason: how it ended, or None while it goes on.
    """

    def __init__(self, parsing: ChatParsing) -> None:
        state = parsing.reasoning
        self._reasoning = None if state is None else ReasoningParser(state)
        self._tools = ToolCallParser(parsing.make_call_id) if parsing.has_tools else None
        self._is_call_named = parsing.is_call_named
        self.num_tokens = 0
        self.finish_reason: ChatFinishReason | None = None

    def feed(self, delta: OutputDelta) -> ChatPiece:
        """Takes the next output; what comes after the finish is ignored."""
        if self.finish_reason is not None:
            return ChatPiece()
        self.num_tokens += len(delta.token_ids)
        reasoning, content = "", delta.text
        is_final = delta.finish_reason is not None
        if self._reasoning is not None:
            split = self._reasoning.feed(delta.text)
            rest = self._reasoning.finish() if is_final else None
            reasoning = split.reasoning + (rest.reasoning if rest else "")
            content = split.content + (rest.content if rest else "")
        calls: tuple[ToolCall, ...] = ()
        if self._tools is not None:
            found = self._tools.feed(content)
            content, calls = found.content, found.calls
            if is_final:
                found = self._tools.finish()
                content, calls = content + found.content, calls + found.calls
        self.finish_reason = delta.finish_reason
        has_calls = self._tools is not None and self._tools.num_calls > 0
        if self.finish_reason == "stop" and has_calls and not self._is_call_named:
            self.finish_reason = "tool_calls"
        return ChatPiece(reasoning, content, calls, delta.logprobs, self.finish_reason)
