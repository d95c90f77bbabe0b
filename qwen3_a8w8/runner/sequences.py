"""The runner's state of each live sequence: its ids and its sampling state."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from qwen3_a8w8.engine.plan import SequenceStart
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.text.grammar_state import GrammarState
from qwen3_a8w8.text.thinking_tokens import TokenMask, mask_of

_FORCE = 1e30
"""Added to a logit, it is the largest one in float32, and still finite."""


_NOTHING: Mapping[int, int] = MappingProxyType({})


class SamplingRow(NamedTuple):
    """The sampler's input for one token.

    Attributes:
        sampling: the sequence's settings.
        position: of the drawn token.
        biases: values added to logits; -inf masks a token.
        history: occurrences in the output of each id in prompt or output; empty without
            penalties.
        allowed: a bit per token; None: all may be drawn.
    """

    sampling: SamplingParams
    position: int
    biases: Mapping[int, float]
    history: Mapping[int, int]
    allowed: TokenMask | None = None


class RunnerSequence:
    """One live sequence.

    Attributes:
        seq_id: its id.
        sampling: its settings, seed included.
        token_ids: prompt, then output; sampled tokens are appended.
        num_prompt_tokens: number of prompt tokens among them.
        stop_token_ids: masked until `min_tokens` is reached.
        grammar: its grammar state with structured output, or None.
        checked_block_ids: the last block table that passed validation.
    """

    __slots__ = (
        "_allowed",
        "_bad_beginnings",
        "_bad_ids",
        "_history",
        "_is_plain",
        "checked_block_ids",
        "grammar",
        "num_prompt_tokens",
        "sampling",
        "seq_id",
        "stop_token_ids",
        "token_ids",
    )

    def __init__(
        self, start: SequenceStart, grammar: GrammarState | None = None, *, vocab_size: int
    ) -> None:
        self.seq_id = start.seq_id
        self.sampling = start.sampling
        self.token_ids = array("i", start.prompt_token_ids)
        self.token_ids.extend(start.output_token_ids)
        self.num_prompt_tokens = len(start.prompt_token_ids)
        self.stop_token_ids = start.stop_token_ids
        self._history: dict[int, int] | None = None
        if self._has_penalties():
            self._history = dict.fromkeys(start.prompt_token_ids, 0)
            for token_id, count in Counter(start.output_token_ids).items():
                self._history[token_id] = count
        words = self.sampling.barred_words
        self._bad_ids = tuple(word[0] for word in words if len(word) == 1)
        # By the last id before the one that completes a word: most words needn't be looked at.
        self._bad_beginnings: dict[int, list[tuple[list[int], int]]] = {}
        for *beginning, last in words:
            if beginning:
                self._bad_beginnings.setdefault(beginning[-1], []).append((beginning, last))
        allowed = self.sampling.allowed_token_ids
        self._allowed = None if allowed is None else mask_of(allowed, vocab_size)
        self.grammar = grammar
        self.checked_block_ids: tuple[int, ...] = ()
        # Only settings and position determine the sampler's input.
        self._is_plain = (
            grammar is None
            and self._history is None
            and not self.sampling.logit_bias
            and not self.sampling.min_tokens
            and not words
            and self._allowed is None
            and self.sampling.thinking_limit is None
        )
        if grammar is not None:
            for token_id in start.output_token_ids:
                grammar.advance(token_id)

    def sampling_row(self, drafts: Sequence[int] = ()) -> SamplingRow:
        """Sampler input for the next token, or for the one after `drafts` if they are accepted.

        Args:
            drafts: draft tokens assumed after the newest token.
        """
        position = len(self.token_ids) + len(drafts)
        if self._is_plain:
            return SamplingRow(self.sampling, position, _NOTHING, _NOTHING)
        forced_id = self._forced_id(drafts)
        if forced_id is not None:
            return self._forced_row(position, forced_id, self.sampling.logprobs)
        biases = dict(self.sampling.logit_bias)
        allowed = self._allowed_after(drafts)
        barred = self._barred(position - self.num_prompt_tokens, drafts)
        if barred and (allowed is None or _has_others(allowed, barred)):
            biases.update(dict.fromkeys(barred, float("-inf")))
        history = self._history if self._history is not None else {}
        if drafts and self._history is not None:
            history = dict(history)
            for token_id in drafts:
                history[token_id] = history.get(token_id, 0) + 1
        return SamplingRow(self.sampling, position, biases, history, allowed)

    def prompt_row(self, position: int) -> SamplingRow:
        """Sampler input that forces the known token at `position`, for its log-probabilities."""
        token_id = self.token_ids[position]
        return self._forced_row(position, token_id, self.sampling.prompt_logprobs)

    def append(self, token_id: int) -> None:
        """Appends a sampled token."""
        self.token_ids.append(token_id)
        if self.grammar is not None:
            self.grammar.advance(token_id)
        if self._history is not None:
            self._history[token_id] = self._history.get(token_id, 0) + 1

    def _forced_row(self, position: int, token_id: int, logprobs: int | None) -> SamplingRow:
        sampling = replace(self.sampling, temperature=0.0, logprobs=logprobs)
        return SamplingRow(sampling, position, {token_id: _FORCE}, {})

    def _forced_id(self, drafts: Sequence[int]) -> int | None:
        limit = self.sampling.thinking_limit
        num_output = len(self.token_ids) + len(drafts) - self.num_prompt_tokens
        if limit is None or not 0 <= num_output - limit.num_tokens < len(limit.end_ids):
            return None
        return limit.forced_id([*self.token_ids[self.num_prompt_tokens :], *drafts])

    def _barred(self, num_output: int, drafts: Sequence[int]) -> list[int]:
        """Tokens that may not come next: they would end the output too early, or a bad word."""
        is_early = num_output < self.sampling.min_tokens
        barred = [*(self.stop_token_ids if is_early else ()), *self._bad_ids]
        if not self._bad_beginnings or num_output == 0:
            return barred
        newest = drafts[-1] if drafts else self.token_ids[-1]
        for beginning, last in self._bad_beginnings.get(newest, ()):
            count = len(beginning)
            if count <= num_output and [*self.token_ids[-count:], *drafts][-count:] == beginning:
                barred.append(last)
        return barred

    def _allowed_after(self, drafts: Sequence[int]) -> TokenMask | None:
        grammar = self.grammar
        if grammar is None:
            return self._allowed
        if not drafts:
            return grammar.allowed()
        ahead = grammar.copy()
        for token_id in drafts:
            ahead.advance(token_id)
        # After a draft token that isn't allowed the mask is irrelevant: samples there are dropped.
        return ahead.allowed()

    def _has_penalties(self) -> bool:
        sampling = self.sampling
        return (
            sampling.repetition_penalty != 1.0
            or sampling.presence_penalty != 0.0
            or sampling.frequency_penalty != 0.0
        )


def _has_others(allowed: TokenMask, token_ids: Sequence[int]) -> bool:
    """Whether the mask allows any token besides these."""
    return bool((allowed & ~mask_of(token_ids, 32 * allowed.size)).any())
