"""From a sequence's output ids to text: the one way, for `LLM` and for the deployment.

`OutputProcessor` takes the engine's events. It joins detokenizer and stop strings and says how
the text ended: a stop string ends it here, and the caller then aborts the sequence.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from qwen3_a8w8.errors import EngineDeadError
from qwen3_a8w8.text.outputs import FinishReason, LogprobEntry, OutputDelta, TokenLogprob
from qwen3_a8w8.text.tokenizer import Tokenizer


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


class SequenceEvent(Protocol):
    """What steps have added to a sequence (`engine.request.TokenEvent` is one)."""

    @property
    def token_ids(self) -> Sequence[int]:
        """New output ids, in order; may be empty."""
        ...

    @property
    def logprobs(self) -> Sequence[PositionLogprobs | None]:
        """One per id; None, or none at all, where they weren't asked for."""
        ...

    @property
    def finish_reason(self) -> str | None:
        """The engine's, if the sequence ended with the last of these ids."""
        ...

    @property
    def stop_token_id(self) -> int | None:
        """The last id if it ended the sequence; it is no part of the text."""
        ...

    @property
    def error(self) -> Exception | None:
        """Why the sequence failed."""
        ...

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that came from the prefix cache."""
        ...

    @property
    def prompt_tokens(self) -> Sequence[PositionOfPrompt]:
        """The prompt's tokens but the first, with log-probabilities."""
        ...


class TextSettings(Protocol):
    """The settings of a request that concern text (`SamplingParams` has them)."""

    @property
    def stop(self) -> Sequence[str]:
        """Strings that end the text; they aren't part of it."""
        ...

    @property
    def min_tokens(self) -> int:
        """The text of so many first tokens is never searched for `stop`."""
        ...

    @property
    def skip_special_tokens(self) -> bool:
        """Leave special tokens out of the text."""
        ...


class OutputProcessor:
    """Turns one sequence's output tokens into text, up to its end.

    Attributes:
        num_tokens: output tokens so far.
        finish_reason: how it ended, or None while it continues.
    """

    def __init__(self, tokenizer: Tokenizer, settings: TextSettings) -> None:
        """Makes a processor for one sequence.

        Args:
            tokenizer: of the model that generates.
            settings: of its request.
        """
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens=settings.skip_special_tokens)
        self._stop = StopStringMatcher(settings.stop)
        self._min_tokens = settings.min_tokens
        self._num_chars = 0
        self.num_tokens = 0
        self.finish_reason: FinishReason | None = None

    def feed(self, event: SequenceEvent) -> OutputDelta:
        """Takes the next event.

        Returns:
            What it adds. Once the sequence has finished, an empty delta: a step that was
            already under way when a stop string matched changes nothing.

        Raises:
            Qwen3A8W8Error: the event's own error, if the sequence has failed.
            EngineDeadError: the engine has ended the sequence without an error.
        """
        if self.finish_reason is not None:
            return OutputDelta()
        if event.error is not None:
            raise event.error
        finish_reason = _finish_reason(event.finish_reason)
        token_ids = event.token_ids
        # A sequence that failed over has its own output in the next replica's prefix cache too.
        is_first = bool(token_ids) and self.num_tokens == 0
        text: list[str] = []
        offsets: list[int] = []
        for token_id in token_ids:
            offsets.append(self._num_chars)
            self.num_tokens += 1
            if event.stop_token_id is not None and len(offsets) == len(token_ids):
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
            logprobs=self._entries(token_ids, event.logprobs, offsets),
            finish_reason=self.finish_reason,
            stop_reason=matched if matched is not None else event.stop_token_id,
            is_stopped=matched is not None and finish_reason is None,
            prompt_logprobs=self._prompt_entries(event.prompt_tokens),
            num_cached_tokens=event.num_cached_tokens if is_first else 0,
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


def _finish_reason(reason: str | None) -> FinishReason | None:
    """The engine's finish reason as clients know it: a deadline is a limit.

    Raises:
        EngineDeadError: the engine has aborted the sequence.
    """
    if reason is None:
        return None
    if reason == "stop":
        return "stop"
    if reason in ("length", "timeout"):
        return "length"
    raise EngineDeadError(f"the engine ended the sequence: {reason}")


class Detokenizer:
    """Token ids to text, one at a time, without ever showing half a character.

    A byte-level BPE token is a run of bytes, so an incremental UTF-8 decoder over those bytes is
    all it takes: each token costs its own length, whatever came before, and the pieces together are
    what decoding everything at once gives.
    """

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
    """Finds stop strings in text that arrives in pieces.

    Holds back exactly the longest tail that could still become a stop string, so that no beginning
    of one is ever shown and no text is ever lost. The result doesn't depend on how the text was
    cut into pieces.

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
