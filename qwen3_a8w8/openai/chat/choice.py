"""One choice of a chat completion: output deltas split into the parts of a message.

Also what a request's `thinking_budget` means for the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from qwen3_a8w8.engine.sampling_params import ThinkingLimit
from qwen3_a8w8.errors import InvalidRequestError
from qwen3_a8w8.openai.chat.shapes import ChatFinishReason
from qwen3_a8w8.text.outputs import LogprobEntry, OutputDelta
from qwen3_a8w8.text.reasoning import THINK_CLOSE, THINK_OPEN, ReasoningParser, ReasoningState
from qwen3_a8w8.text.tokenizer import Tokenizer
from qwen3_a8w8.text.tool_calls import AnswerPart, ToolCallParser, WholeCalls, new_call_id


@dataclass(frozen=True, slots=True)
class ChatParsing:
    """How answers of one request are split.

    Attributes:
        reasoning: state that the prompt leaves the answer in (`reasoning.initial_state`), or
            None to leave think blocks in the content.
        has_reasoning: show the think block; otherwise it is left out of the answer.
        has_tools: look for tool calls.
        tool_names: tools that were offered; a call of another one is text. None: any.
        is_call_required: the output has to be a call; what is cut before one can be read is left
            out, since none of it is text.
        is_call_named: the request named the function to call; the answer then ends with "stop",
            as OpenAI's do.
        make_call_id: gives a call its id.
        think_ids: ids of the tags that open and close the think block, or None.
    """

    reasoning: ReasoningState | None = ReasoningState.UNDECIDED
    has_reasoning: bool = True
    has_tools: bool = False
    tool_names: frozenset[str] | None = None
    is_call_required: bool = False
    is_call_named: bool = False
    make_call_id: Callable[[], str] = new_call_id
    think_ids: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class ChatPiece:
    """What one output delta adds to the message; `finish_reason` comes with the last.

    Attributes:
        reasoning: text of the think block, which comes before everything else.
        parts: text and parts of calls, in the order in which the model wrote them.
        logprobs: of the tokens.
        token_ids: the tokens.
        num_reasoning_tokens: the first tokens that belong to the think block.
        finish_reason: how the choice ended.
        stop_reason: the stop string or token that ended it.
    """

    reasoning: str = ""
    parts: tuple[AnswerPart, ...] = ()
    logprobs: tuple[LogprobEntry, ...] = ()
    token_ids: tuple[int, ...] = ()
    num_reasoning_tokens: int = 0
    finish_reason: ChatFinishReason | None = None
    stop_reason: str | int | None = None


class ChatChoice:
    """Parsers and counters of one choice.

    Attributes:
        num_tokens: output tokens so far.
        num_reasoning_tokens: those of them in the think block, tags included.
        finish_reason: how it ended, or None while it goes on.
    """

    def __init__(self, parsing: ChatParsing, *, is_streamed: bool = True) -> None:
        """Starts a choice.

        Args:
            parsing: how it is split.
            is_streamed: calls are reported as they are written. Otherwise each comes as one part
                once it has ended, and one that turns out to be malformed not at all.
        """
        state = parsing.reasoning
        self._reasoning = None if state is None else ReasoningParser(state)
        self._has_reasoning = parsing.has_reasoning
        self._tools: ToolCallParser | None = None
        if parsing.has_tools:
            self._tools = ToolCallParser(
                parsing.make_call_id,
                names=parsing.tool_names,
                is_required=parsing.is_call_required,
            )
        self._whole_calls = None if is_streamed else WholeCalls()
        self._think_ids = parsing.think_ids
        self._is_thinking = state is ReasoningState.REASONING
        self._is_call_named = parsing.is_call_named
        self.num_tokens = 0
        self.num_reasoning_tokens = 0
        self.finish_reason: ChatFinishReason | None = None

    def feed(self, delta: OutputDelta) -> ChatPiece:
        """Takes the next output; what comes after the finish is ignored."""
        if self.finish_reason is not None:
            return ChatPiece()
        num_reasoning = self._count(delta.token_ids)
        reasoning, content = "", delta.text
        is_final = delta.finish_reason is not None
        if self._reasoning is not None:
            split = self._reasoning.feed(delta.text)
            rest = self._reasoning.finish() if is_final else None
            if self._has_reasoning:
                reasoning = split.reasoning + (rest.reasoning if rest else "")
            content = split.content + (rest.content if rest else "")
        parts: list[AnswerPart] = [content] if content else []
        if self._tools is not None:
            parts = self._tools.feed(content)
            if is_final:
                parts += self._tools.finish(is_cut=delta.finish_reason == "length")
            if self._whole_calls is not None:
                parts = self._whole_calls.feed(parts)
        self.finish_reason = delta.finish_reason
        has_calls = self._tools is not None and self._tools.num_calls > 0
        if self.finish_reason == "stop" and has_calls and not self._is_call_named:
            self.finish_reason = "tool_calls"
        return ChatPiece(
            reasoning,
            tuple(parts),
            delta.logprobs,
            delta.token_ids,
            num_reasoning,
            self.finish_reason,
            delta.stop_reason,
        )

    def _count(self, token_ids: Sequence[int]) -> int:
        """Counts tokens; returns how many of them belong to the think block."""
        self.num_tokens += len(token_ids)
        if self._think_ids is None:
            return 0
        num_before = self.num_reasoning_tokens
        open_id, close_id = self._think_ids
        for token_id in token_ids:
            if token_id == open_id and not self.num_reasoning_tokens:
                self._is_thinking = True
            if self._is_thinking:
                self.num_reasoning_tokens += 1
                self._is_thinking = token_id != close_id
        return self.num_reasoning_tokens - num_before


THINK_END = f"\n{THINK_CLOSE}\n\n"
"""How Qwen3 ends a think block before its answer."""


def think_ids(tokenizer: Tokenizer) -> tuple[int, int] | None:
    """Ids of the tags that open and close a think block, where a model has such tokens."""
    open_id, close_id = tokenizer.token_id(THINK_OPEN), tokenizer.token_id(THINK_CLOSE)
    return None if open_id is None or close_id is None else (open_id, close_id)


def thinking_limit(
    tokenizer: Tokenizer, num_tokens: int, state: ReasoningState
) -> ThinkingLimit | None:
    """The limit of one answer.

    Args:
        tokenizer: of the model.
        num_tokens: most tokens before the block is closed.
        state: in which the prompt leaves the answer.

    Returns:
        None where the prompt has closed the block: there is nothing to limit.

    Raises:
        InvalidRequestError: the model has no tags for thinking.
    """
    if state in (ReasoningState.CONTENT, ReasoningState.AFTER_REASONING):
        return None
    ids = think_ids(tokenizer)
    if ids is None:
        raise InvalidRequestError(
            f"thinking_budget is {num_tokens}, but the model has no tokens {THINK_OPEN} and "
            f"{THINK_CLOSE}; leave it out",
            param="thinking_budget",
        )
    is_to_be_opened = state is ReasoningState.UNDECIDED
    return ThinkingLimit(
        # A block that the model opens has the opening tag in any case.
        num_tokens=max(num_tokens, 1) if is_to_be_opened else num_tokens,
        end_ids=tuple(tokenizer.encode(THINK_END)),
        close_id=ids[1],
        open_id=ids[0] if is_to_be_opened else None,
    )
