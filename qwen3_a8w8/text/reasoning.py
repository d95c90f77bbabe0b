"""Splits an output into the text inside `<think>...</think>` and the content after it.

Works incrementally. The tags are ordinary (not special) added tokens of Qwen3, so
they are part of the text. If the generation prompt has opened or closed the block
itself, the model doesn't repeat the tag: `initial_state` detects that from the end
of the rendered prompt.

Newlines next to the tags belong to the format, not to either text; Qwen3's template
inserts them again when the message is part of a later prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from qwen3_a8w8.text.structured import Thinking

THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"


class ReasoningState(Enum):
    """Position in an output."""

    UNDECIDED = "undecided"
    """Only white space so far; `<think>` may follow."""
    REASONING = "reasoning"
    """Inside the block."""
    AFTER_REASONING = "after_reasoning"
    """Right after the block; newlines here are dropped."""
    CONTENT = "content"
    """In the content, until the end."""


def initial_state(prompt: str) -> ReasoningState:
    """Initial state of a generation that continues the rendered `prompt`."""
    tail = prompt[-64:].rstrip()
    if tail.endswith(THINK_OPEN):
        return ReasoningState.REASONING
    if tail.endswith(THINK_CLOSE):
        return ReasoningState.CONTENT
    return ReasoningState.UNDECIDED


def thinking_after(state: ReasoningState) -> Thinking:
    """Where the grammar of a chat output applies from, given the end of its prompt."""
    if state is ReasoningState.UNDECIDED:
        return Thinking.OPTIONAL
    return Thinking.OPEN if state is ReasoningState.REASONING else Thinking.NONE


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """New reasoning and content text."""

    reasoning: str = ""
    content: str = ""


class ReasoningParser:
    """Incremental parser of one output."""

    def __init__(self, state: ReasoningState = ReasoningState.UNDECIDED) -> None:
        self._state = state
        self._held = ""
        self._has_reasoning = False

    def feed(self, text: str) -> ReasoningDelta:
        """Splits the next text; a suffix that could become a tag is held back."""
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
        """Returns the text held back, at the end of the output."""
        held, self._held = self._held, ""
        if self._state is ReasoningState.REASONING:
            return ReasoningDelta(reasoning=held if self._has_reasoning else held.lstrip("\n"))
        return ReasoningDelta(content=held)

    def _decide(self) -> None:
        start = self._held.lstrip()
        if start.startswith(THINK_OPEN):
            self._held = start[len(THINK_OPEN) :]
            self._state = ReasoningState.REASONING
        elif not THINK_OPEN.startswith(start):
            self._state = ReasoningState.CONTENT

    def _take_reasoning(self) -> str:
        inside, tag, after = self._held.partition(THINK_CLOSE)
        if tag:
            self._held = after
            self._state = ReasoningState.AFTER_REASONING
            shown = inside.rstrip("\n")
        else:
            # Newlines before a possible closing tag are held back with it.
            num_shown = len(inside) - partial_tail(inside, THINK_CLOSE)
            shown = inside[:num_shown].rstrip("\n")
            self._held = inside[len(shown) :]
        if not self._has_reasoning:
            # Leading newlines; until other text arrives they are all held back.
            shown = shown.lstrip("\n")
            self._has_reasoning = bool(shown)
        return shown


def partial_tail(text: str, tag: str) -> int:
    """Length of the longest suffix of `text` that is a proper prefix of `tag`."""
    for length in range(min(len(text), len(tag) - 1), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0
