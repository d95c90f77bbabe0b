"""What a request may ask of the sampler and of the end of its generation.

Validated once, when it is made: nothing past admission has to doubt a value.
Knows no tokenizer, so stop strings are matched elsewhere (`text/output_processor.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from qwen3_a8w8.config import MAX_LOGPROBS
from qwen3_a8w8.errors import InvalidRequestError
from qwen3_a8w8.text.bad_words import bad_word_ids
from qwen3_a8w8.text.structured import StructuredOutput, Thinking
from qwen3_a8w8.text.tokenizer import Tokenizer

MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 1024
"""Longest stop string; its beginning is held back from the client, and it is searched for in
every character."""

MAX_BAD_WORDS = 1024
MAX_BAD_WORD_IDS = 64
"""Longest bad word in tokens: the end of the output is compared with each of them at each token."""

MAX_THINKING_END = 32
MAX_SEED = 2**63 - 1
MAX_TOP_K = 2**31 - 1
"""Devices take top_k as int32; no vocabulary is larger."""

MIN_REPETITION_PENALTY = 0.01
"""Below, a float32 logit divided by it may overflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingLimit:
    """Bounds the think block: after `num_tokens` output tokens it is closed by force.

    The tokens at the positions from `num_tokens` on are then those of `end_ids`, whatever the
    logits say. That depends on the tokens before them alone, so it holds in every batch,
    with lookahead, and after a failover.

    Attributes:
        num_tokens: most output tokens before the end, the opening tag included (>= 0).
        end_ids: ids of the text that closes the block, `close_id` among them.
        close_id: id of the closing tag; where the output has it already, nothing is forced.
        open_id: id of the opening tag; nothing is forced unless the output begins with it. None:
            the prompt has opened the block.
    """

    num_tokens: int
    end_ids: tuple[int, ...]
    close_id: int
    open_id: int | None = None

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidRequestError: a value has the wrong type or is outside its range.
        """
        is_good = _is_int(self.num_tokens) and self.num_tokens >= 0
        if not is_good or not 1 <= len(self.end_ids) <= MAX_THINKING_END:
            raise InvalidRequestError(
                f"the thinking limit has {self.num_tokens!r} tokens and an end of "
                f"{len(self.end_ids)}; expected at least 0, and 1 to {MAX_THINKING_END}",
                param="thinking_budget",
            )

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All ids that it names."""
        opening = () if self.open_id is None else (self.open_id,)
        return (*self.end_ids, self.close_id, *opening)

    def forced_id(self, output_ids: Sequence[int]) -> int | None:
        """The id that has to come after `output_ids`, or None where the model is free."""
        place = len(output_ids) - self.num_tokens
        if not 0 <= place < len(self.end_ids):
            return None
        before = output_ids[: self.num_tokens]
        is_open = self.open_id is None or list(before[:1]) == [self.open_id]
        if not is_open or self.close_id in before:
            return None
        return self.end_ids[place]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Decoding settings of one request; names and meanings are vLLM's.

    The order of application is: logit_bias, min_tokens and bad_words, allowed_token_ids or
    structured, penalties, temperature, min_p, top_k, top_p, then one draw keyed by (seed,
    position). Where `min_tokens` and `bad_words` would leave no allowed token, they bar none.

    Attributes:
        max_tokens: most tokens to generate (>= 1); None: as many as the context has room for.
        min_tokens: end-of-sequence and stop tokens are barred before that many tokens (>= 0).
        temperature: 0 is greedy; range [0, 100].
        top_k: keep the k most likely tokens; 0 or -1 keeps all.
        top_p: keep the smallest set of tokens whose probability reaches this; [0, 1], 0 keeps
            the most likely token.
        min_p: drop tokens less likely than this share of the most likely one; [0, 1].
        seed: -2**63 to 2**63 - 1; None or -1: the engine draws one. A seed fixes the answer; a
            negative one becomes itself plus 2**63.
        presence_penalty: [-2, 2], subtracted once from the logit of each token generated so far.
        frequency_penalty: [-2, 2], subtracted once per occurrence in the output.
        repetition_penalty: [0.01, 10], divides positive and multiplies negative logits of tokens
            in prompt or output.
        logit_bias: token id -> value in [-100, 100], added to the logit.
        allowed_token_ids: only these tokens are drawn; None: all.
        bad_words: texts that the output never completes, or sequences of ids; `tokenized` turns
            texts into ids, which the engine takes.
        stop: strings that end the generation; they are not part of the text.
        stop_from: where stop strings count from: NONE from the first token, otherwise after the
            think block.
        include_stop_str_in_output: a stop string that ends the generation is part of the text.
        stop_token_ids: ids that end the generation, beside the model's own.
        ignore_eos: go on past the model's end-of-sequence tokens.
        logprobs: report the log-probability of each token and of this many alternatives
            (0 to 20) under the model's own distribution; None: don't.
        prompt_logprobs: the same for every token of the prompt but the first, reported with the
            first token of the output. The prompt is then recomputed, in small chunks.
        n: independent answers to one prompt (1 to 16).
        skip_special_tokens: leave special tokens out of the text.
        thinking_limit: closes the think block in time; None: the model does.
        structured: the structured output, a `StructuredOutput` or a mapping of its attributes. The
            answer ends where its grammar does, also before `min_tokens`.
    """

    max_tokens: int | None = 256
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str | tuple[int, ...], ...] = ()
    stop: tuple[str, ...] = ()
    stop_from: Thinking = Thinking.NONE
    include_stop_str_in_output: bool = False
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    n: int = 1
    skip_special_tokens: bool = True
    thinking_limit: ThinkingLimit | None = None
    structured: StructuredOutput | None = None

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidRequestError: a value has the wrong type or is outside its range; `param`
                names the field.
        """
        self._check_int("max_tokens", 1, None, is_optional=True)
        self._check_int("min_tokens", 0, None)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens {self.min_tokens} is above max_tokens {self.max_tokens}; lower it",
                param="min_tokens",
            )
        self._check_float("temperature", 0.0, 100.0)
        self._check_int("top_k", -1, MAX_TOP_K)
        self._check_float("top_p", 0.0, 1.0)
        self._check_float("min_p", 0.0, 1.0)
        self._check_int("seed", -MAX_SEED - 1, MAX_SEED, is_optional=True)
        if self.seed is not None and self.seed < 0:
            # OpenAI's seeds may be negative; -1 is "random" in vLLM and llama.cpp.
            seed = None if self.seed == -1 else self.seed + MAX_SEED + 1
            object.__setattr__(self, "seed", seed)
        self._check_float("presence_penalty", -2.0, 2.0)
        self._check_float("frequency_penalty", -2.0, 2.0)
        self._check_float("repetition_penalty", MIN_REPETITION_PENALTY, 10.0)
        self._check_int("logprobs", 0, MAX_LOGPROBS, is_optional=True)
        self._check_int("prompt_logprobs", 0, MAX_LOGPROBS, is_optional=True)
        self._check_int("n", 1, 16)
        # Accept what callers naturally write, a single string or any sequence.
        raw_stop: Any = self.stop
        stop = (raw_stop,) if isinstance(raw_stop, str) else tuple(raw_stop or ())
        if len(stop) > MAX_STOP_STRINGS or not all(isinstance(s, str) and s for s in stop):
            raise InvalidRequestError(
                f"stop has {len(stop)} entries {stop!r:.200}; expected at most "
                f"{MAX_STOP_STRINGS} non-empty strings",
                param="stop",
            )
        if too_long := [s for s in stop if len(s) > MAX_STOP_CHARS]:
            raise InvalidRequestError(
                f"stop has a string of {len(too_long[0])} characters, expected at most "
                f"{MAX_STOP_CHARS}; shorten it",
                param="stop",
            )
        object.__setattr__(self, "stop", stop)
        ids = tuple(self.stop_token_ids or ())
        if not all(_is_int(i) and i >= 0 for i in ids):
            raise InvalidRequestError(
                f"stop_token_ids is {ids!r:.200}, expected token ids of at least 0",
                param="stop_token_ids",
            )
        object.__setattr__(self, "stop_token_ids", ids)
        bias = dict(self.logit_bias or {})
        for token_id, value in bias.items():
            if not (_is_int(token_id) and token_id >= 0):
                raise InvalidRequestError(
                    f"logit_bias has the key {token_id!r}, expected a token id of at least 0",
                    param="logit_bias",
                )
            if not (_is_number(value) and -100.0 <= value <= 100.0):
                raise InvalidRequestError(
                    f"logit_bias[{token_id}] is {value!r}, expected a number from -100 to 100",
                    param="logit_bias",
                )
        object.__setattr__(self, "logit_bias", bias)
        object.__setattr__(self, "stop_from", Thinking(self.stop_from))
        self._check_bad_words()
        self._check_structured()
        self._check_allowed()

    def with_seed(self, seed: int) -> SamplingParams:
        """The same settings with `seed` in place of the present one."""
        return replace(self, seed=seed)

    def with_thinking(self, thinking: Thinking) -> SamplingParams:
        """The same settings; the grammar of the answer, if it has one, starts to apply there."""
        if self.structured is None:
            return self
        return replace(self, structured=replace(self.structured, thinking=thinking))

    def tokenized(self, tokenizer: Tokenizer) -> SamplingParams:
        """The same settings with texts among the bad words as ids.

        Raises:
            InvalidRequestError: a word can't be written as UTF-8.
        """
        if not any(isinstance(word, str) for word in self.bad_words):
            return self
        return replace(self, bad_words=bad_word_ids(tokenizer, self.bad_words))

    @property
    def barred_words(self) -> list[tuple[int, ...]]:
        """`bad_words`, all of them as ids."""
        return [word for word in self.bad_words if not isinstance(word, str)]

    def check_vocabulary(self, vocab_size: int) -> None:
        """Checks the token ids that only a model can judge.

        Raises:
            InvalidRequestError: an id is no token, or a bad word is still a text.
        """
        if texts := [word for word in self.bad_words if isinstance(word, str)]:
            raise InvalidRequestError(
                f"bad_words has the text {texts[0]!r:.60}, but this engine has no tokenizer; give "
                "sequences of token ids",
                param="bad_words",
            )
        for param, ids in (
            ("logit_bias", self.logit_bias),
            ("allowed_token_ids", self.allowed_token_ids or ()),
            ("bad_words", [i for word in self.barred_words for i in word]),
            ("stop_token_ids", self.stop_token_ids),
            ("thinking_budget", self.thinking_limit.token_ids if self.thinking_limit else ()),
        ):
            for token_id in ids:
                if token_id >= vocab_size:
                    raise InvalidRequestError(
                        f"{param} names token {token_id}, but the vocabulary ends at "
                        f"{vocab_size - 1}",
                        param=param,
                    )

    def _check_bad_words(self) -> None:
        raw: Any = self.bad_words
        words = (raw,) if isinstance(raw, str) else tuple(raw or ())
        if len(words) > MAX_BAD_WORDS:
            raise InvalidRequestError(
                f"bad_words has {len(words)} entries, expected at most {MAX_BAD_WORDS}",
                param="bad_words",
            )
        checked: list[str | tuple[int, ...]] = []
        for word in words:
            is_text = isinstance(word, str) and 1 <= len(word) <= MAX_STOP_CHARS
            is_ids = (
                isinstance(word, list | tuple)
                and 1 <= len(word) <= MAX_BAD_WORD_IDS
                and all(_is_int(i) and i >= 0 for i in word)
            )
            if not (is_text or is_ids):
                raise InvalidRequestError(
                    f"bad_words has the entry {word!r:.60}, expected a text of 1 to "
                    f"{MAX_STOP_CHARS} characters, or 1 to {MAX_BAD_WORD_IDS} token ids",
                    param="bad_words",
                )
            checked.append(word if isinstance(word, str) else tuple(word))
        object.__setattr__(self, "bad_words", tuple(checked))

    def _check_allowed(self) -> None:
        if self.allowed_token_ids is None:
            return
        ids = tuple(self.allowed_token_ids)
        if not ids or not all(_is_int(i) and i >= 0 for i in ids):
            raise InvalidRequestError(
                f"allowed_token_ids is {ids!r:.200}, expected at least one token id, each at "
                "least 0",
                param="allowed_token_ids",
            )
        if self.structured is not None:
            raise InvalidRequestError(
                "allowed_token_ids is set together with structured output, whose grammar decides "
                "which tokens are allowed; remove one of them",
                param="allowed_token_ids",
            )
        object.__setattr__(self, "allowed_token_ids", ids)

    def _check_structured(self) -> None:
        structured: Any = self.structured
        if structured is None:
            return
        if isinstance(structured, Mapping):
            object.__setattr__(self, "structured", StructuredOutput.from_fields(structured))
        elif not isinstance(structured, StructuredOutput):
            raise InvalidRequestError(
                f"structured is {structured!r:.60}, expected a StructuredOutput or a mapping of "
                "its attributes",
                param="structured",
            )
        if self.ignore_eos:
            raise InvalidRequestError(
                "ignore_eos is set, but a structured output ends where its grammar does; leave one "
                "of them out",
                param="ignore_eos",
            )

    def _check_int(
        self, name: str, low: int, high: int | None, *, is_optional: bool = False
    ) -> None:
        value: Any = getattr(self, name)
        if value is None and is_optional:
            return
        if not _is_int(value) or value < low or (high is not None and value > high):
            upper = "" if high is None else f" and at most {high}"
            raise InvalidRequestError(
                f"{name} is {value!r}, expected an integer of at least {low}{upper}", param=name
            )

    def _check_float(self, name: str, low: float, high: float) -> None:
        value: Any = getattr(self, name)
        if not (_is_number(value) and low <= value <= high):
            raise InvalidRequestError(
                f"{name} is {value!r}, expected a number in [{low:g}, {high:g}]", param=name
            )


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int that no float holds
        return False
