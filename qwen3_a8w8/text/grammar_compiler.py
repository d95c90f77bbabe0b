"""From the form that a request asks for to what says which tokens may come next.

A form is prepared while its request is admitted: tried out in a process of its own
(`grammar_check.py`), then compiled here, and kept for the next request with the same form. When
the first token is about to be sampled, `start` only copies what is there.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from functools import cached_property
from pathlib import Path

from llguidance import LLMatcher, LLTokenizer

from qwen3_a8w8.errors import InvalidRequestError
from qwen3_a8w8.text.grammar_check import (
    GrammarChecker,
    InvalidGrammarError,
    compile_source,
    load_vocabulary,
)
from qwen3_a8w8.text.grammar_state import GrammarState
from qwen3_a8w8.text.no_tokenizer import has_no_tokenizer
from qwen3_a8w8.text.structured import StructuredOutput
from qwen3_a8w8.text.thinking_tokens import ThinkingTokens
from qwen3_a8w8.text.tokenizer import TOKENIZER_FILE, Tokenizer

COMPILE_TIMEOUT_S = 5.0
"""Processor time that one form may take to compile."""

MAX_KEPT = 512
"""Forms that are kept, compiled or found unusable."""


class GrammarCompiler:
    """Compiles forms for one model's vocabulary. Thread-safe."""

    def __init__(
        self,
        directory: Path,
        *,
        vocab_size: int,
        eos_token_ids: tuple[int, ...],
        timeout_s: float = COMPILE_TIMEOUT_S,
        max_kept: int = MAX_KEPT,
    ) -> None:
        """Makes a compiler; the first form pays for its picture of the vocabulary.

        Args:
            directory: of the checkpoint; its tokenizer is read when it is first needed.
            vocab_size: of the model; ids that the tokenizer doesn't know are never allowed.
            eos_token_ids: what may follow a complete answer.
            timeout_s: processor time that a form may take.
            max_kept: forms that are kept.
        """
        self._directory = directory
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._max_kept = max_kept
        self._checker = GrammarChecker(directory, vocab_size, eos_token_ids, timeout_s)
        self._kept: OrderedDict[object, LLMatcher | str] = OrderedDict()
        self._kept_lock = threading.Lock()
        self._compile_lock = threading.Lock()

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
        return GrammarState(matcher, structured.thinking, self._thinking_tokens, self._vocab_size)

    def close(self) -> None:
        """Ends the process in which forms are tried; may be called again."""
        self._checker.close()

    def _matcher(self, structured: StructuredOutput) -> LLMatcher:
        kept = self._find(structured.key)
        if kept is None:
            with self._compile_lock:
                kept = self._find(structured.key)
                if kept is None:
                    kept = self._compile(structured)
                    self._keep(structured.key, kept)
        if isinstance(kept, str):
            raise InvalidRequestError(
                f"{structured.param} can't be used: {kept}", param=structured.param
            )
        return kept

    def _find(self, key: object) -> LLMatcher | str | None:
        with self._kept_lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def _keep(self, key: object, kept: LLMatcher | str) -> None:
        with self._kept_lock:
            self._kept[key] = kept
            if len(self._kept) > self._max_kept:
                self._kept.popitem(last=False)

    def _compile(self, structured: StructuredOutput) -> LLMatcher | str:
        if has_no_tokenizer(self._directory):
            return f"the checkpoint has no tokenizer; put its {TOKENIZER_FILE} beside the weights"
        self._checker.start()
        vocabulary, _ = self._vocabulary, self._thinking_tokens  # both read it at the same time
        try:
            return compile_source(vocabulary, self._checker.source(structured))
        except InvalidGrammarError as error:
            return str(error)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return Tokenizer.from_directory(self._directory)

    @cached_property
    def _vocabulary(self) -> LLTokenizer:
        return load_vocabulary(self._tokenizer, self._vocab_size, self._eos_token_ids)

    @cached_property
    def _thinking_tokens(self) -> ThinkingTokens | None:
        return ThinkingTokens.of(self._tokenizer, self._vocab_size, self._eos_token_ids)
