"""Finds stop strings in text that arrives in pieces, and where the text begins that they count in.

Knows neither tokens nor requests: `output_processor.py` feeds it the text.
"""

from __future__ import annotations

from collections.abc import Sequence

from qwen3_a8w8.text.reasoning import THINK_CLOSE, THINK_OPEN, partial_tail
from qwen3_a8w8.text.structured import Thinking


class ThoughtSplitter:
    """Splits an output into its think block, tags included, and what follows.

    The same text ends the block as in `reasoning.py`. Text that may still be the start of a block
    is held back.
    """

    def __init__(self, thinking: Thinking) -> None:
        """Starts at the beginning of an output.

        Args:
            thinking: where the output begins: before a possible block (OPTIONAL), in one (OPEN), or
                behind it (NONE).
        """
        self._state = thinking
        self._held = ""

    def feed(self, text: str) -> tuple[str, str]:
        """The parts of the next text that stand in the block, and behind it."""
        if self._state is Thinking.NONE:
            return "", text
        text = self._held + text
        self._held = ""
        if self._state is Thinking.OPTIONAL:
            start = text.lstrip()
            if not start.startswith(THINK_OPEN):
                if THINK_OPEN.startswith(start):
                    self._held = text
                    return "", ""
                self._state = Thinking.NONE
                return "", text
            self._state = Thinking.OPEN
        thought, tag, rest = text.partition(THINK_CLOSE)
        if tag:
            self._state = Thinking.NONE
            return thought + tag, rest
        num_shown = len(text) - partial_tail(text, THINK_CLOSE)
        self._held = text[num_shown:]
        return text[:num_shown], ""

    def finish(self) -> tuple[str, str]:
        """The text held back, at the end of the output."""
        held, self._held = self._held, ""
        return (held, "") if self._state is Thinking.OPEN else ("", held)


class StopStringMatcher:
    """Finds stop strings in text that arrives in pieces.

    Holds back exactly the longest tail that could still become a stop string, so that no beginning
    of one is ever shown and no text is ever lost. The result doesn't depend on how the text was
    cut into pieces.

    The stop string that is complete first ends the text; if several are complete
    at the same character, the longest one does.

    Attributes:
        matched: the stop string that ended the text, or None.
    """

    def __init__(self, stop: Sequence[str], *, is_included: bool = False) -> None:
        """Starts at the beginning of a text.

        Args:
            stop: the strings; none may be empty.
            is_included: the one that ends the text is part of it.
        """
        self._is_included = is_included
        self._patterns = [(text, _failure_table(text)) for text in stop]
        self._progress = [0] * len(self._patterns)
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """Text that can be shown now. With a match it ends before, or with, the stop string.

        Args:
            text: the next piece; ignored once `matched` is set.
        """
        if not self._patterns or self.matched is not None:
            return "" if self.matched is not None else text
        buffer = self._held + text
        for position in range(len(self._held), len(buffer)):
            matched = self._advance(buffer[position])
            if matched is not None:
                self._held = ""
                self.matched = matched
                end = position + 1
                return buffer[: end if self._is_included else end - len(matched)]
        num_held = max(self._progress)
        shown = len(buffer) - num_held
        self._held = buffer[shown:]
        return buffer[:shown]

    def finish(self) -> str:
        """The tail held back, when no more text will come."""
        held, self._held = self._held, ""
        self._progress = [0] * len(self._patterns)
        return held

    def _advance(self, char: str) -> str | None:
        """Moves every pattern on by one character; the longest one complete with it."""
        # Knuth-Morris-Pratt: `progress` is the length of the longest beginning of the
        # pattern that the text so far ends with, so long patterns cost no more than short ones.
        matched: str | None = None
        for index, (pattern, failure) in enumerate(self._patterns):
            length = self._progress[index]
            while length and pattern[length] != char:
                length = failure[length - 1]
            if pattern[length] == char:
                length += 1
            self._progress[index] = length
            if length == len(pattern) and (matched is None or length > len(matched)):
                matched = pattern
        return matched


def _failure_table(pattern: str) -> list[int]:
    """For each prefix, the length of its longest proper prefix that is also its suffix."""
    table = [0] * len(pattern)
    length = 0
    for position in range(1, len(pattern)):
        while length and pattern[position] != pattern[length]:
            length = table[length - 1]
        if pattern[position] == pattern[length]:
            length += 1
        table[position] = length
    return table
