"""The tokens allowed next in one sequence with structured output.

The state belongs to the sequence and advances with its tokens. The mask depends on these tokens
alone, so it is the same in every batch, after a preemption and after a failover.
"""

from __future__ import annotations

from enum import Enum

import numpy as np
from llguidance import LLMatcher

from qwen3_a8w8.text.structured import Thinking
from qwen3_a8w8.text.thinking_tokens import ThinkingTokens, TokenMask, mask_of

MAX_NEWLINES = 2
"""Most newlines between a think block and the answer; Qwen3 writes two."""


class _Place(Enum):
    BEFORE = "before"  # no token yet: a think block or the answer may start
    INSIDE = "inside"  # in the think block
    AFTER = "after"  # right after it, where newlines may follow
    ANSWER = "answer"


_PLACES = {
    Thinking.NONE: _Place.ANSWER,
    Thinking.OPTIONAL: _Place.BEFORE,
    Thinking.OPEN: _Place.INSIDE,
}


class GrammarState:
    """Position in an output, and the matcher of its grammar.

    Attributes:
        error: why no token is allowed any more, or None: the grammar state has become too
            complex, or the sequence has a token that isn't allowed.
    """

    __slots__ = ("_matcher", "_num_newlines", "_num_words", "_place", "_tail", "_thinking", "error")

    def __init__(
        self,
        matcher: LLMatcher,
        thinking: Thinking,
        thinking_tokens: ThinkingTokens | None,
        vocab_size: int,
    ) -> None:
        """Starts an output.

        Args:
            matcher: at the start of its grammar; owned by this state.
            thinking: where the grammar applies from.
            thinking_tokens: of the model; None: no think blocks, the grammar applies at once.
            vocab_size: of the model.
        """
        self._num_words = -(-vocab_size // 32)
        self._matcher = matcher
        self._thinking = thinking_tokens
        self._place = _Place.ANSWER if thinking_tokens is None else _PLACES[thinking]
        self._tail = b""  # last bytes of the think block
        self._num_newlines = 0
        self.error: str | None = None

    def allowed(self) -> TokenMask | None:
        """Mask of the tokens allowed next; None after an error."""
        if self.error is not None:
            return None
        thinking = self._thinking
        if thinking is not None and self._place is _Place.INSIDE:
            return thinking.allowed_inside(self._tail)
        # llguidance's mask may have a word more than the vocabulary fills.
        words = np.frombuffer(self._matcher.compute_bitmask(), np.int32)
        allowed: TokenMask = words[: self._num_words]
        # A failed matcher would allow the end of the output at any position.
        if self._has_failed():
            return None
        if thinking is not None and self._place is _Place.BEFORE:
            allowed = allowed | thinking.opening
        elif thinking is not None and self._place is _Place.AFTER:
            most = MAX_NEWLINES - self._num_newlines
            newlines = [i for i, count in thinking.newlines.items() if count <= most]
            allowed = allowed | mask_of(newlines, 32 * allowed.size)
        return allowed

    def advance(self, token_id: int) -> None:
        """Takes the next token of the sequence."""
        if self.error is not None:
            return
        if self._thinking is not None and self._place is not _Place.ANSWER:
            if self._is_consumed_by_thinking(self._thinking, token_id):
                return
            self._place = _Place.ANSWER
        # With lookahead a finished sequence is sampled once more.
        if not self._matcher.is_stopped():
            self._matcher.consume_token(token_id)
        self._has_failed()

    def copy(self) -> GrammarState:
        """A copy, to advance over tokens that aren't confirmed."""
        matcher = self._matcher.deep_copy()
        other = GrammarState(matcher, Thinking.NONE, self._thinking, 32 * self._num_words)
        other._place, other._tail = self._place, self._tail
        other._num_newlines, other.error = self._num_newlines, self.error
        return other

    def _is_consumed_by_thinking(self, tokens: ThinkingTokens, token_id: int) -> bool:
        if self._place is _Place.INSIDE:
            if token_id == tokens.close_id:
                self._place = _Place.AFTER
            else:
                self._tail = (self._tail + tokens.token_bytes(token_id))[-7:]
            return True
        if self._place is _Place.BEFORE and token_id == tokens.open_id:
            self._place = _Place.INSIDE
            return True
        num_newlines = self._num_newlines + tokens.newlines.get(token_id, MAX_NEWLINES + 1)
        if self._place is _Place.AFTER and num_newlines <= MAX_NEWLINES:
            self._num_newlines = num_newlines
            return True
        return False

    def _has_failed(self) -> bool:
        """Records the matcher's error, if it has one."""
        if not self._matcher.is_error():
            return False
        message = self._matcher.get_error().partition("\n")[0][:300]
        self.error = message or f"the grammar cannot continue: {self._matcher.stop_reason()}"
        return True
