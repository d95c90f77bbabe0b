"""Which rows decode in this step, and in a batch of which size.

One pure decision: in come the sequences that could decode now, out come the rows
of one dispatch and the reason. Knows no blocks, no plans and no queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from qwen3_a8w8.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class DecodeChoice:
    """The rows of a decode dispatch.

    Attributes:
        batch_size: rows the dispatch is compiled for.
        rows: the live ones, in the order of arrival.
        num_ready: sequences that could have been decoded.
        reason: why this size, for logs and debugging.
    """

    batch_size: int
    rows: tuple[Sequence, ...]
    num_ready: int
    reason: str


def choose_decode(
    ready: list[Sequence],
    batch_sizes: tuple[int, ...],
    step_s: Mapping[int, float],
) -> DecodeChoice | None:
    """Picks the rows of the next decode dispatch.

    An explicit batch and the independent sequences never share a dispatch; when both are
    ready, the one that has waited longer goes. Independent sequences of a number that is
    itself a batch size (1, 16) go all together; any other number takes the size that
    brings all of them one token further in the least time: ceil(n / size) dispatches of
    that size. If that takes several dispatches, the rows that decoded longest ago go first.

    Args:
        ready: sequences that can decode, each with room for its next token.
        batch_sizes: compiled sizes, ascending.
        step_s: measured seconds of a decode step, by size.

    Returns:
        The choice, or None when nothing is ready.
    """
    if not ready:
        return None
    group, gang = ready, ready[0].gang
    if len({seq.gang for seq in ready}) > 1:
        gang = min(ready, key=_turn).gang
        group = [seq for seq in ready if seq.gang is gang]
    if gang is not None:
        return _choice(gang.batch_size, group, len(ready), "explicit batch")

    num_rows = len(group)
    if num_rows in batch_sizes:
        return _choice(num_rows, group, len(ready), f"{num_rows} ready, exactly a batch")
    cost_s = {size: -(-num_rows // size) * step_s[size] for size in batch_sizes}
    best = min(batch_sizes, key=lambda size: (cost_s[size], -size))
    costs = ", ".join(f"B{size} {cost_s[size]:.6g} s" for size in batch_sizes)
    rows = sorted(group, key=_turn)[:best]
    return _choice(best, rows, len(ready), f"{num_rows} ready, one token each: {costs}")


def _turn(seq: Sequence) -> tuple[int, int]:
    return (seq.last_decode_step, seq.seq_id)


def _seq_id(seq: Sequence) -> int:
    return seq.seq_id


def _choice(batch_size: int, rows: list[Sequence], num_ready: int, reason: str) -> DecodeChoice:
    return DecodeChoice(batch_size, tuple(sorted(rows, key=_seq_id)), num_ready, reason)
