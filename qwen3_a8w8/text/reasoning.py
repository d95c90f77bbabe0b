"""Splitting an answer into what stands inside `<think>...</think>` and what follows.

Works on text as it arrives. The tags are ordinary (not special) added tokens of
Qwen3, so they are part of the text. Where the generation prompt has opened or
closed the block itself, the model doesn't repeat it: `initial_state` reads that
from the end of the rendered prompt.

Newlines beside the tags belong to the format, not to the parts; Qwen3's template
puts them back when the message returns in a later turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from qwen3_a8w8.text.structured import Thinking

THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"


class ReasoningState(Enum):
    """Where in an answer the next text belongs."""

    UNDECIDED = "undecided"
    """Nothing but white space so far; `<think>` may come."""
    REASONING = "reasoning"
    """Inside the block."""
    AFTER_REASONING = "after_reasoning"
    """Just behind the block; newlines here are dropped."""
    CONTENT = "content"
    """In the answer proper, for good."""


def initial_state(prompt: str) -> ReasoningState:
    """State in which a generation that continues the rendered `prompt` begins."""
    tail = prompt[-64:].rstrip()
    if tail.endswith(THINK_OPEN):
        return ReasoningState.REASONING
    if tail.endswith(THINK_CLOSE):
        return ReasoningState.CONTENT
    return ReasoningState.UNDECIDED


def thinking_after(state: ReasoningState) -> Thinking:
    """Where the grammar of a chat answer starts to apply, by how its prompt ends."""
    if state is ReasoningState.UNDECIDED:
        return Thinking.OPTIONAL
    return Thinking.OPEN if state is ReasoningState.REASONING else Thinking.NONE


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """New text of either part."""

    reasoning: str = ""
    content: str = ""


class ReasoningParser:
    """Incremental parser of one answer."""

    def __init__(self, state: ReasoningState = ReasoningState.UNDECIDED) -> None:
        self._state = state
        self._held = ""
        self._is_reasoning_begun = False

    def feed(self, text: str) -> ReasoningDelta:
        """Splits the next piece; what could still be a tag is held back."""
        if self._state is ReasoningState.CONTENT:
            return ReasoningDelta(content=text)
        self._held += text
        reasoning = ""
        if self._state is ReasoningState.UNDECIDED:
            self._decide()
        if self._state is ReasoningState.REASONING:
            reasoning = self._take_reasoning()
        if self._state is ReasoningState.AFTER_REASONING:
            self._held = self._held.lstrip("\n")
            if self._held:
                self._state = ReasoningState.CONTENT
        if self._state is ReasoningState.CONTENT:
            content, self._held = self._held, ""
            return ReasoningDelta(reasoning=reasoning, content=content)
        return ReasoningDelta(reasoning=reasoning)

    def finish(self) -> ReasoningDelta:
        """What was held back, when no more text will come."""
        held, self._held = self._held, ""
        if self._state is ReasoningState.REASONING:
            return ReasoningDelta(reasoning=held if self._is_reasoning_begun else held.lstrip("\n"))
        return ReasoningDelta(content=held)

    def _decide(self) -> None:
        start = self._held.lstrip()
        if start.startswith(THINK_OPEN):
            self._held = start[len(THINK_OPEN) :]
            self._state = ReasoningState.REASONING
        elif not THINK_OPEN.startswith(start):
            self._state = ReasoningState.CONTENT

    def _take_reasoning(self) -> str:
        inside, tag, behind = self._held.partition(THINK_CLOSE)
        if tag:
            self._held = behind
            self._state = ReasoningState.AFTER_REASONING
            shown = inside.rstrip("\n")
        else:
            # Newlines before a possible closing tag wait with it.
            num_shown = len(inside) - partial_tail(inside, THINK_CLOSE)
            shown = inside[:num_shown].rstrip("\n")
            self._held = inside[len(shown) :]
        if not self._is_reasoning_begun:
            # Leading newlines; while nothing else has come they are all still held back.
            shown = shown.lstrip("\n")
            self._is_reasoning_begun = bool(shown)
        return shown


def partial_tail(text: str, tag: str) -> int:
    """Length of the longest end of `text` that is a beginning of `tag`, but not all of it."""
    for length in range(min(len(text), len(tag) - 1), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0
