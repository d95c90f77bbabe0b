"""Tests grammars in a child process before the engine process compiles them.

Grammars come from clients. A hostile one of a few kilobytes can take minutes or gigabytes, or
crash its process (deep recursion in native code). So a child with limits of memory and time first
compiles each grammar and advances it by a few tokens; a grammar that ends the child is rejected.

Run as a module, this is the child: it reads one JSON line per grammar and replies with one. Its
own timer ends it when a grammar takes too long, so that it can't outlive its parent for long.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import random
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, grammar_from

from qwen3_a8w8.text.grammar_relaxing import relaxed
from qwen3_a8w8.text.json_grammar import Schema, json_options, without_empty_keywords
from qwen3_a8w8.text.special_text import refusal, special_text
from qwen3_a8w8.text.structured import StructuredOutput
from qwen3_a8w8.text.tokenizer import Tokenizer
from qwen3_a8w8.text.tool_grammar import lark_text

logger = logging.getLogger(__name__)

CHILD_BYTES = 384 * 2**20
"""Memory that a child may use on top of its vocabulary."""

START_TIMEOUT_S = 60.0
"""Processor time in which a child must have loaded the vocabulary."""

NUM_STEPS = 24
"""Tokens by which a grammar is advanced."""

MAX_STEP_S = 0.05
"""Most processor time per token on average: all rows of a step wait for it."""

MAX_MESSAGE = 500


class InvalidGrammarError(ValueError):
    """A grammar that can't be compiled, or not within the limits; the message says why."""


def load_vocabulary(
    tokenizer: Tokenizer, vocab_size: int, eos_token_ids: tuple[int, ...]
) -> LLTokenizer:
    """llguidance's representation of a vocabulary; ids without a token are never allowed."""
    return LLTokenizer(tokenizer.to_json(), n_vocab=vocab_size, eos_token=list(eos_token_ids))


def grammar_source(structured: StructuredOutput) -> str:
    """The grammar in llguidance's notation.

    Raises:
        InvalidGrammarError: it can't be parsed.
    """
    try:
        if structured.json_object:
            return _of_schema({"type": "object"}, structured.whitespace_pattern, is_lenient=False)
        if structured.json is not None:
            return _of_schema(
                without_empty_keywords(json.loads(structured.text)),
                structured.whitespace_pattern,
                is_lenient=structured.is_lenient,
            )
        if structured.choice is not None:
            return grammar_from("lark", "start: " + " | ".join(map(lark_text, structured.choice)))
        if structured.regex is not None:
            return grammar_from("regex", structured.regex)
        return grammar_from("grammar", structured.text)
    except ValueError as error:
        raise InvalidGrammarError(str(error)[:MAX_MESSAGE]) from None


def compile_source(vocabulary: LLTokenizer, source: str) -> LLMatcher:
    """A matcher at the start of a grammar.

    Raises:
        InvalidGrammarError: the grammar is malformed, or exceeds llguidance's limits.
    """
    # These limits, and the defaults of the others, keep the slowest step near 30 ms.
    limits = LLParserLimits(step_max_items=10_000, max_lexer_states=20_000, verbose_errors=False)
    matcher = LLMatcher(vocabulary, source, log_level=0, limits=limits)
    if not matcher.is_error():
        # The first step may find further errors: no text matches at all, or a limit is exceeded.
        matcher.compute_bitmask()
    if matcher.is_error():
        message = matcher.get_error().replace("<non-verbose/>", "").strip()[:MAX_MESSAGE]
        has_no_text = message.startswith("NoExtension")
        raise InvalidGrammarError("no text matches it" if has_no_text else message)
    return matcher


class GrammarChecker:
    """Owns the child. Thread-safe; grammars are tested one after the other."""

    def __init__(
        self, directory: Path, vocab_size: int, eos_token_ids: tuple[int, ...], timeout_s: float
    ) -> None:
        """Creates a checker without a child.

        Args:
            directory: of the checkpoint, for its tokenizer.
            vocab_size: of the model.
            eos_token_ids: ids that may follow a complete output.
            timeout_s: processor time that one grammar may take.
        """
        self._arguments = [str(directory), str(vocab_size), json.dumps(eos_token_ids)]
        self._timeout_s = timeout_s
        self._child: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Starts the child if there is none; doesn't wait until it has loaded the vocabulary."""
        with self._lock:
            self._running()

    def source(self, structured: StructuredOutput) -> str:
        """Tests a grammar and returns it in llguidance's notation.

        Raises:
            InvalidGrammarError: it is malformed or exceeds a limit.
        """
        fields = {name: getattr(structured, name) for name in _SENT}
        with self._lock:
            child = self._running()
            reply = _ask(child, json.dumps(fields))
            if reply is None:
                raise InvalidGrammarError(self._exit_reason(child.wait()))
        if reply["error"] is not None:
            raise InvalidGrammarError(reply["error"])
        if reply["removed"]:
            logger.warning(
                "a schema has keywords that can't be enforced; they are ignored: %s",
                ", ".join(reply["removed"])[:MAX_MESSAGE],
            )
        source: str = reply["source"]
        return source

    def close(self) -> None:
        """Ends the child; idempotent."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()

    def _running(self) -> subprocess.Popen[str]:
        if self._child is None or self._child.poll() is not None:
            self._child = subprocess.Popen(
                [sys.executable, "-m", __name__, str(self._timeout_s), *self._arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                encoding="utf-8",
                # The child imports this package from the same place as this process.
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        return self._child

    def _exit_reason(self, code: int) -> str:
        reasons = {
            -signal.SIGPROF: f"it takes more than {self._timeout_s:g} s of processor time",
            -signal.SIGSEGV: "it is nested or chained too deeply",
        }
        reason = reasons.get(code, f"it takes more than {CHILD_BYTES >> 20} MiB to compile")
        return f"{reason}, which is the limit; simplify it"


_SENT = (
    *("json", "json_object", "regex", "choice", "grammar"),
    *("is_lenient", "whitespace_pattern", "tools"),
)


def _ask(child: subprocess.Popen[str], line: str) -> dict[str, Any] | None:
    """The child's reply, or None if it has ended."""
    if child.stdin is None or child.stdout is None:
        return None
    try:
        child.stdin.write(line + "\n")
        child.stdin.flush()
        reply_line = child.stdout.readline()
    except BrokenPipeError:
        return None
    reply: dict[str, Any] | None = json.loads(reply_line) if reply_line else None
    return reply


def _of_schema(schema: object, whitespace_pattern: str | None, *, is_lenient: bool) -> str:
    return LLMatcher.grammar_from_json_schema(
        json.dumps(schema, ensure_ascii=False),
        defaults=json_options(whitespace_pattern, is_lenient=is_lenient),
    )


def _test(
    vocabulary: LLTokenizer, specials: dict[int, str], fields: dict[str, Any]
) -> dict[str, Any]:
    structured = StructuredOutput(**fields)
    special = special_text(structured, list(specials.values()))
    if special is not None:
        return {"source": None, "error": refusal(special)}
    removed: tuple[str, ...] = ()
    try:
        source = grammar_source(structured)
        matcher = compile_source(vocabulary, source)
    except InvalidGrammarError as error:
        result = relaxed(structured, functools.partial(_problem, vocabulary))
        if result.structured is None:
            message = result.error or _explained(str(error), specials)
            return {"source": None, "error": message[:MAX_MESSAGE]}
        removed = result.removed
        try:
            source = grammar_source(result.structured)
            matcher = compile_source(vocabulary, source)
        except InvalidGrammarError as error:
            return {"source": None, "error": _explained(str(error), specials)}
    rng, start_s, num_steps = random.Random(0), time.process_time(), 0
    for _ in range(NUM_STEPS):
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
        if matcher.is_error() or matcher.is_stopped() or not allowed.size:
            break
        matcher.consume_token(int(rng.choice(allowed)))
        num_steps += 1
    if time.process_time() - start_s > MAX_STEP_S * max(1, num_steps):
        return {"source": None, "error": f"it takes more than {MAX_STEP_S:g} s for each token"}
    if matcher.is_error():
        return {
            "source": None,
            "error": _explained(matcher.get_error().partition("\n")[0], specials),
        }
    return {"source": source, "error": None, "removed": removed}


def _problem(
    vocabulary: LLTokenizer, schema: Schema, whitespace_pattern: str | None, is_lenient: bool
) -> str | None:
    """What keeps a schema from being compiled, or None."""
    try:
        compile_source(vocabulary, _of_schema(schema, whitespace_pattern, is_lenient=is_lenient))
    except (InvalidGrammarError, ValueError) as error:
        return str(error)
    return None


def _explained(message: str, specials: dict[int, str]) -> str:
    """llguidance's message, or ours if the text of a special token is forced (e.g. by a regex)."""
    found = re.search(r'token "[^"]*\[(\d+)\]" doesn\'t satisfy the grammar; forced', message)
    if found is not None and int(found[1]) in specials:
        return refusal(specials[int(found[1])])
    return message[:MAX_MESSAGE]


def _main(timeout_s: float, directory: str, vocab_size: int, eos_token_ids: list[int]) -> None:
    # Processor time: a busy machine must not make a grammar fail. The default action of the timer's
    # signal ends the process, even inside native code.
    signal.setitimer(signal.ITIMER_PROF, START_TIMEOUT_S)
    tokenizer = Tokenizer.from_directory(directory)
    vocabulary = load_vocabulary(tokenizer, vocab_size, tuple(eos_token_ids))
    added = json.loads(tokenizer.to_json())["added_tokens"]
    specials = {token["id"]: token["content"] for token in added}
    num_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = num_pages * resource.getpagesize() + CHILD_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(5)  # engine steps run at the same time
    signal.setitimer(signal.ITIMER_PROF, 0)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, timeout_s)
        reply = _test(vocabulary, specials, json.loads(line))
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    _main(float(sys.argv[1]), sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4]))
