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
from qwen3_a8w8.text.stop_strings import StopStringMatcher, ThoughtSplitter
from qwen3_a8w8.text.structured import Thinking
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
        """Strings that end the text."""
        ...

    @property
    def stop_from(self) -> Thinking:
        """Where they count from."""
        ...

    @property
    def include_stop_str_in_output(self) -> bool:
        """The one that ends the text is part of it."""
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
        self._stop = StopStringMatcher(
            settings.stop, is_included=settings.include_stop_str_in_output
        )
        self._thought = ThoughtSplitter(settings.stop_from if settings.stop else Thinking.NONE)
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
            thought, content = self._thought.finish()
            text += (thought, self._stop.feed(content))
            if self._stop.matched is None:
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
        thought, content = self._thought.feed(text)
        if self.num_tokens > self._min_tokens:
            content = self._stop.feed(content)
        return thought + content

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
