"""Finding stop strings in text that arrives in pieces.

Holds back exactly the longest tail that could still become a stop string, so
that no beginning of one is ever shown and no text is ever lost. The result
doesn't depend on how the text was cut into pieces.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStringMatcher:
    """Streaming matcher for one sequence.

    The stop string that is complete first ends the text; if several are complete
    at the same character, the longest one does.

    Attributes:
        matched: the stop string that ended the text, or None.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._patterns = [(text, _failure_table(text)) for text in stop]
        self._progress = [0] * len(self._patterns)
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """Text that can be shown now. After a match it is what stood before the stop string.

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
                return buffer[: position + 1 - len(matched)]
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
