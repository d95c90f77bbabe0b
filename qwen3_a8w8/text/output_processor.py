"""From a sequence's output ids to what a client sees of them.

`OutputProcessor` joins detokenizer and stop strings and reports how the text ended. It doesn't
know the engine: it is given ids, log-probabilities and the engine's finish reason, and says when
a stop string has ended the text, so that the caller can abort the sequence.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from qwen3_a8w8.text.tokenizer import Tokenizer


class Detokenizer:
    """Incremental detokenizer of one sequence."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._hidden_ids = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_id: int) -> str:
        """Text that this token completes; bytes of an unfinished character are held back."""
        if token_id in self._hidden_ids:
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def finish(self) -> str:
        """The rest: U+FFFD if the sequence ends inside a character, otherwise nothing."""
        return self._decoder.decode(b"", final=True)


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


FinishReason = Literal["stop", "length"]


class PositionLogprobs(Protocol):
    """Log-probabilities at one position (`engine.plan.TokenLogprobs` is one)."""

    @property
    def logprob(self) -> float:
        """Of the sampled token, natural logarithm."""
        ...

    @property
    def top(self) -> Sequence[tuple[int, float]]:
        """The most likely tokens as (token id, logprob), most likely first."""
        ...


class PositionOfPrompt(Protocol):
    """A known token with its log-probabilities (`engine.plan.PromptToken` is one)."""

    @property
    def token_id(self) -> int:
        """The token."""
        ...

    @property
    def logprobs(self) -> PositionLogprobs:
        """Given the tokens before it."""
        ...


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token with its log-probability.

    Attributes:
        token_id: the id.
        token: its text; bytes that are no UTF-8 on their own are written as backslash escapes.
        token_bytes: its real bytes, so that a character cut in two can be put together.
        logprob: natural logarithm.
    """

    token_id: int
    token: str
    token_bytes: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class LogprobEntry:
    """Log-probabilities at one position.

    Attributes:
        sampled: the token that was taken.
        top: the most likely ones, most likely first.
        text_offset: characters of the sequence's text that were complete before this token.
    """

    sampled: TokenLogprob
    top: tuple[TokenLogprob, ...]
    text_offset: int


@dataclass(frozen=True, slots=True)
class OutputDelta:
    """What one feed adds to a sequence's output.

    Attributes:
        text: new text; may be empty while a character or a possible stop string is incomplete.
        token_ids: the ids that count as output, the one that ended it included.
        logprobs: one entry per token id, or empty when none were asked for.
        finish_reason: set once, on the last delta.
        stop_reason: the stop string or the stop token id that ended it, or None.
        is_stopped: a stop string ended it, so the engine is to abort the sequence.
        prompt_logprobs: of the prompt's tokens but the first, if they were asked for; with the
            first delta that has tokens. `text_offset` counts from the second token on.
    """

    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[LogprobEntry, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    is_stopped: bool = False
    prompt_logprobs: tuple[LogprobEntry, ...] = ()


class OutputProcessor:
    """Turns one sequence's output tokens into text, up to its end.

    Attributes:
        num_tokens: output tokens so far.
        finish_reason: how it ended, or None while it goes on.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] = (),
        min_tokens: int = 0,
        skip_special_tokens: bool = True,
        stop_token_ids: Collection[int] = (),
    ) -> None:
        """Makes a processor for one sequence.

        Args:
            tokenizer: of the model that generates.
            stop: strings that end the text; they aren't part of it.
            min_tokens: text of the first `min_tokens` tokens is never searched for `stop`.
            skip_special_tokens: leave special tokens out of the text.
            stop_token_ids: every id that can end the sequence (the model's and the request's);
                the one that does is no part of the text, special or not.
        """
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
        self._stop = StopStringMatcher(stop)
        self._min_tokens = min_tokens
        self._stop_token_ids = frozenset(stop_token_ids)
        self._num_chars = 0
        self.num_tokens = 0
        self.finish_reason: FinishReason | None = None

    def feed(
        self,
        token_ids: Sequence[int],
        logprobs: Sequence[PositionLogprobs | None] | None = None,
        finish_reason: FinishReason | None = None,
        prompt_tokens: Sequence[PositionOfPrompt] = (),
    ) -> OutputDelta:
        """Takes the next tokens.

        Args:
            token_ids: new output ids, in order; may be empty.
            logprobs: one per id, or None.
            finish_reason: the engine's, if the sequence ended with the last of these ids.
            prompt_tokens: the prompt's but the first, with log-probabilities.

        Returns:
            What they add. Once the sequence has finished, an empty delta: a step that was
            already under way when a stop string matched changes nothing.
        """
        if self.finish_reason is not None:
            return OutputDelta()
        text: list[str] = []
        offsets: list[int] = []
        stop_token: int | None = None
        for token_id in token_ids:
            offsets.append(self._num_chars)
            self.num_tokens += 1
            is_last = len(offsets) == len(token_ids)
            if is_last and finish_reason == "stop" and token_id in self._stop_token_ids:
                stop_token = token_id
                break
            piece = self._detokenizer.feed(token_id)
            self._num_chars += len(piece)
            text.append(self._search(piece))
            if self._stop.matched is not None:
                break
        if finish_reason is not None and self._stop.matched is None:
            text.append(self._search(self._detokenizer.finish()))
            text.append(self._stop.finish())
        matched = self._stop.matched
        self.finish_reason = "stop" if matched is not None else finish_reason
        return OutputDelta(
            text="".join(text),
            token_ids=tuple(token_ids[: len(offsets)]),
            logprobs=() if logprobs is None else self._entries(token_ids, logprobs, offsets),
            finish_reason=self.finish_reason,
            stop_reason=matched if matched is not None else stop_token,
            is_stopped=matched is not None and finish_reason is None,
            prompt_logprobs=self._prompt_entries(prompt_tokens),
        )

    def _search(self, text: str) -> str:
        return text if self.num_tokens <= self._min_tokens else self._stop.feed(text)

    def _entries(
        self,
        token_ids: Sequence[int],
        logprobs: Sequence[PositionLogprobs | None],
        offsets: Sequence[int],
    ) -> tuple[LogprobEntry, ...]:
        # There are as many offsets as tokens that count; the rest came after a stop string.
        return tuple(
            LogprobEntry(
                sampled=self._token(token_id, position.logprob),
                top=tuple(self._token(*alternative) for alternative in position.top),
                text_offset=offset,
            )
            for token_id, position, offset in zip(token_ids, logprobs, offsets, strict=False)
            if position is not None
        )

    def _prompt_entries(
        self, prompt_tokens: Sequence[PositionOfPrompt]
    ) -> tuple[LogprobEntry, ...]:
        detokenizer = Detokenizer(self._tokenizer, skip_special_tokens=False)
        entries: list[LogprobEntry] = []
        num_chars = 0
        for token in prompt_tokens:
            sampled = self._token(token.token_id, token.logprobs.logprob)
            top = tuple(self._token(*alternative) for alternative in token.logprobs.top)
            entries.append(LogprobEntry(sampled, top, num_chars))
            num_chars += len(detokenizer.feed(token.token_id))
        return tuple(entries)

    def _token(self, token_id: int, logprob: float) -> TokenLogprob:
        return TokenLogprob(
            token_id=token_id,
            token=self._tokenizer.token_text(token_id),
            token_bytes=self._tokenizer.token_bytes(token_id),
            logprob=logprob,
        )
