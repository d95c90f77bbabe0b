"""How many prompt tokens a step may compute while other sequences decode.

A step is a prefill dispatch and then a decode dispatch, so what a running sequence
waits longer for its next token is the time of one prefill dispatch. That time is
predicted from the last ones and kept to a target. Larger chunks cost less per
token, so measuring, dividing and measuring again settles where the time of a chunk
equals the target: there is no model of the device in here.
"""

from __future__ import annotations

MIN_TOKENS = 16
"""Smallest chunk: below, a dispatch costs about the same however few tokens it has."""

_SMOOTHING = 0.5


class PrefillBudget:
    """The limit on a prefill dispatch, by the time it may take."""

    def __init__(
        self, chunk_tokens: int, max_stall_s: float | None, token_s: float, layer_share: float
    ) -> None:
        """Makes a budget.

        Args:
            chunk_tokens: most tokens in one prefill dispatch, in any case.
            max_stall_s: target for its time beside decoding sequences; None: no bound.
            token_s: seconds per token as measured at warm-up; 0.0: not measured.
            layer_share: part of the layers that one dispatch goes through, in (0, 1].
        """
        self._chunk_tokens = chunk_tokens
        self._max_stall_s = max_stall_s
        self._token_s = token_s
        self._layer_share = layer_share

    @property
    def token_s(self) -> float:
        """Seconds that a token takes through all layers, by the last dispatches; 0.0: unknown."""
        return self._token_s

    def observe(self, num_tokens: int, layer_share: float, prefill_time_s: float) -> None:
        """Takes in a measured dispatch.

        Args:
            num_tokens: its tokens.
            layer_share: part of the layers it went through.
            prefill_time_s: seconds it took; 0.0: not measured.
        """
        if num_tokens == 0 or prefill_time_s <= 0.0:
            return
        measured = prefill_time_s / (num_tokens * layer_share)
        if self._token_s <= 0.0:
            self._token_s = measured
        else:
            self._token_s += _SMOOTHING * (measured - self._token_s)

    def num_tokens(self, *, is_decoding: bool) -> int:
        """Most tokens of the next dispatch, given whether sequences decode beside it."""
        if not is_decoding or self._max_stall_s is None or self._token_s <= 0.0:
            return self._chunk_tokens
        affordable = int(self._max_stall_s / (self._token_s * self._layer_share))
        return min(max(affordable, MIN_TOKENS), self._chunk_tokens)
