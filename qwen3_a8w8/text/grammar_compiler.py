"""Compiles the structured output of a request into a state that masks the allowed tokens.

A grammar is prepared while its request is admitted: tested in a child process
(`grammar_check.py`), then compiled here, and cached for later requests with the same grammar.
When the first token is about to be sampled, `start` only copies the compiled matcher.
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
"""Processor time that one grammar may take to compile."""

MAX_CACHED = 512
"""Cached grammars, compiled ones and invalid ones."""


class GrammarCompiler:
    """Compiles grammars for one model's vocabulary. Thread-safe."""

    def __init__(
        self,
        directory: Path,
        *,
        vocab_size: int,
        eos_token_ids: tuple[int, ...],
        timeout_s: float = COMPILE_TIMEOUT_S,
        max_cached: int = MAX_CACHED,
    ) -> None:
        """Creates a compiler; the vocabulary is loaded with the first grammar.

        Args:
            directory: of the checkpoint; its tokenizer is loaded when first needed.
            vocab_size: of the model; ids that the tokenizer doesn't have are never allowed.
            eos_token_ids: ids that may follow a complete output.
            timeout_s: processor time that a grammar may take.
            max_cached: most cached grammars.
        """
        self._directory = directory
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._max_cached = max_cached
        self._checker = GrammarChecker(directory, vocab_size, eos_token_ids, timeout_s)
        self._cache: OrderedDict[object, LLMatcher | str] = OrderedDict()
        self._cache_lock = threading.Lock()
        self._compile_lock = threading.Lock()

    def prepare(self, structured: StructuredOutput) -> None:
        """Compiles a grammar unless it is cached, and waits for it.

        Raises:
            InvalidRequestError: it can't be compiled, or not within the limits; `param` is that
                of `structured`.
        """
        self._matcher(structured)

    def start(self, structured: StructuredOutput) -> GrammarState:
        """The state at the start of an output whose grammar has been prepared.

        Raises:
            InvalidRequestError: see `prepare`.
        """
        matcher = self._matcher(structured).deep_copy()
        return GrammarState(matcher, structured.thinking, self._thinking_tokens, self._vocab_size)

    def close(self) -> None:
        """Ends the child process that tests grammars; idempotent."""
        self._checker.close()

    def _matcher(self, structured: StructuredOutput) -> LLMatcher:
        found = self._find(structured.key)
        if found is None:
            with self._compile_lock:
                found = self._find(structured.key)
                if found is None:
                    found = self._compile(structured)
                    self._add(structured.key, found)
        if isinstance(found, str):
            raise InvalidRequestError(
                f"{structured.param} can't be used: {found}", param=structured.param
            )
        return found

    def _find(self, key: object) -> LLMatcher | str | None:
        with self._cache_lock:
            if key in self._cache:
                self._cache.move_to_end(key)
            return self._cache.get(key)

    def _add(self, key: object, matcher_or_error: LLMatcher | str) -> None:
        with self._cache_lock:
            self._cache[key] = matcher_or_error
            if len(self._cache) > self._max_cached:
                self._cache.popitem(last=False)

    def _compile(self, structured: StructuredOutput) -> LLMatcher | str:
        if has_no_tokenizer(self._directory):
            return f"the checkpoint has no tokenizer; put its {TOKENIZER_FILE} next to the weights"
        self._checker.start()
        vocabulary, _ = self._vocabulary, self._thinking_tokens  # loaded while the child loads it
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
