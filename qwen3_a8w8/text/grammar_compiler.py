"""From the form that a request asks for to what says which tokens may come next.

Compiling takes from less than a millisecond to seconds, so it is done in threads of its own
while a request is admitted (`prepare`), bounded in size and time, and kept for the next request
with the same form. When the first token is about to be sampled, `start` only copies what is
there.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import cached_property
from pathlib import Path

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, grammar_from

from qwen3_a8w8.errors import InvalidRequestError
from qwen3_a8w8.text.grammar_state import GrammarState
from qwen3_a8w8.text.no_tokenizer import has_no_tokenizer
from qwen3_a8w8.text.structured import StructuredOutput
from qwen3_a8w8.text.thinking_tokens import ThinkingTokens
from qwen3_a8w8.text.tokenizer import TOKENIZER_FILE, Tokenizer

COMPILE_TIMEOUT_S = 10.0
"""Longest time that one form may take to compile."""

MAX_COMPILED = 128
"""Compiled forms that are kept."""

NUM_THREADS = 2
"""So that one form that takes long doesn't hold up all others."""

WHITESPACE = r"[\x20\x0A\x0D\x09]{1,64}"
"""White space between the parts of a JSON text. Bounded: a model may never stop writing it."""

MAX_MESSAGE = 500


class GrammarCompiler:
    """Compiles forms for one model's vocabulary. Thread-safe."""

    def __init__(
        self,
        directory: Path,
        *,
        vocab_size: int,
        eos_token_ids: tuple[int, ...],
        timeout_s: float = COMPILE_TIMEOUT_S,
        max_compiled: int = MAX_COMPILED,
    ) -> None:
        """Makes a compiler; the first form pays for its picture of the vocabulary.

        Args:
            directory: of the checkpoint; its tokenizer is read when it is first needed.
            vocab_size: of the model; ids that the tokenizer doesn't know are never allowed.
            eos_token_ids: what may follow a complete answer.
            timeout_s: longest time that a form may take.
            max_compiled: forms that are kept.
        """
        self._directory = directory
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._timeout_s = timeout_s
        self._max_compiled = max_compiled
        self._pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="grammar")
        self._compiled: OrderedDict[Hashable, Future[LLMatcher]] = OrderedDict()
        self._lock = threading.Lock()
        self._vocabulary_lock = threading.Lock()

    @cached_property
    def thinking_tokens(self) -> ThinkingTokens | None:
        """The model's think block, or None if it has none."""
        return ThinkingTokens.of(self._tokenizer, self._vocab_size, self._eos_token_ids)

    def prepare(self, structured: StructuredOutput) -> None:
        """Compiles a form, unless that has been done, and waits for it.

        Raises:
            InvalidRequestError: it can't be compiled, or not within the limits; `param` is the
                form's.
        """
        self._matcher(structured)

    def start(self, structured: StructuredOutput) -> GrammarState:
        """The begin of an answer in a form that has been prepared.

        Raises:
            InvalidRequestError: see `prepare`.
        """
        matcher = self._matcher(structured).deep_copy()
        return GrammarState(matcher, structured.thinking, self.thinking_tokens)

    def close(self) -> None:
        """Lets the threads end; may be called again."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _matcher(self, structured: StructuredOutput) -> LLMatcher:
        if has_no_tokenizer(self._directory):
            raise InvalidRequestError(
                f"{structured.param} needs a tokenizer, and the checkpoint has none; put its "
                f"{TOKENIZER_FILE} beside the weights",
                param=structured.param,
            )
        with self._vocabulary_lock:  # built once; a second for a large vocabulary, not timed
            _ = self._vocabulary, self.thinking_tokens
        try:
            return self._future(structured).result(self._timeout_s)
        except FutureTimeoutError:
            raise InvalidRequestError(
                f"{structured.param} takes more than {self._timeout_s:g} s to compile, which is "
                "the limit; make it simpler",
                param=structured.param,
            ) from None
        except _UnusableFormError as error:
            raise InvalidRequestError(
                f"{structured.param} can't be used: {error}", param=structured.param
            ) from None

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return Tokenizer.from_directory(self._directory)

    @cached_property
    def _vocabulary(self) -> LLTokenizer:
        return LLTokenizer(
            self._tokenizer.to_json(),
            n_vocab=self._vocab_size,
            eos_token=list(self._eos_token_ids),
        )

    def _future(self, structured: StructuredOutput) -> Future[LLMatcher]:
        key = structured.key
        with self._lock:
            future = self._compiled.get(key)
            if future is None:
                future = self._pool.submit(self._compile, structured)
                self._compiled[key] = future
                if len(self._compiled) > self._max_compiled:
                    self._compiled.popitem(last=False)
            else:
                self._compiled.move_to_end(key)
            return future

    def _compile(self, structured: StructuredOutput) -> LLMatcher:
        try:
            matcher = LLMatcher(
                self._vocabulary, _source(structured), log_level=0, limits=_limits()
            )
        except ValueError as error:
            raise _UnusableFormError(str(error)[:MAX_MESSAGE]) from None
        if not matcher.is_error():
            # The first step may find more: that no text at all fits, or a limit.
            matcher.compute_bitmask()
        if matcher.is_error():
            message = matcher.get_error().replace("<non-verbose/>", "").strip()[:MAX_MESSAGE]
            raise _UnusableFormError(message or f"no text fits it ({matcher.stop_reason()})")
        return matcher


class _UnusableFormError(ValueError):
    pass


def _source(structured: StructuredOutput) -> str:
    """The form in llguidance's notation.

    Raises:
        ValueError: it can't be read.
    """
    if structured.json_object:
        return _of_schema('{"type": "object"}', is_lenient=False)
    if structured.json is not None:
        return _of_schema(structured.text, is_lenient=structured.is_lenient)
    if structured.choice is not None:
        literals = (json.dumps(choice, ensure_ascii=False) for choice in structured.choice)
        return grammar_from("lark", "start: " + " | ".join(literals))
    if structured.regex is not None:
        return grammar_from("regex", structured.regex)
    return grammar_from("grammar", structured.text)


def _of_schema(schema: str, *, is_lenient: bool) -> str:
    return LLMatcher.grammar_from_json_schema(
        schema, defaults={"whitespace_pattern": WHITESPACE, "lenient": is_lenient}
    )


def _limits() -> LLParserLimits:
    # Of one step: what is left of the defaults keeps the slowest step near 30 ms.
    return LLParserLimits(step_max_items=10_000, max_lexer_states=50_000, verbose_errors=False)
