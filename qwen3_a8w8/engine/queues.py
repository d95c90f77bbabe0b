"""Who waits and who runs, in the order of rank.

Moves sequences between the two and keeps what every move entails; which of them moves is
the scheduler's decision.
"""

from __future__ import annotations

from bisect import insort

from qwen3_a8w8.engine.sequence import Sequence, SequenceState
from qwen3_a8w8.engine.sequence_blocks import SequenceBlocks


def _rank(seq: Sequence) -> tuple[int, int]:
    return seq.rank


class Queues:
    """The live sequences.

    Attributes:
        waiting: those without blocks, lowest rank value first.
        running: those with blocks, likewise.
        trial: the only one that may run, while one is tried alone; see `recovery.py`.
    """

    def __init__(self, blocks: SequenceBlocks) -> None:
        self._blocks = blocks
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.trial: Sequence | None = None

    @property
    def num_waiting_tokens(self) -> int:
        """Tokens of the waiting sequences."""
        return sum(len(seq.token_ids) for seq in self.waiting)

    @property
    def first_waiting(self) -> Sequence | None:
        """Who may come in next."""
        if self.trial is not None:
            return self.trial if self.trial.state is SequenceState.WAITING else None
        return self.waiting[0] if self.waiting else None

    def add(self, seq: Sequence) -> None:
        """Queues a sequence; `seq_id` must be above that of every earlier one."""
        insort(self.waiting, seq, key=_rank)

    def admit(self, seq: Sequence) -> None:
        """Moves a waiting sequence, which has its blocks, to the running ones."""
        self.waiting.remove(seq)
        insort(self.running, seq, key=_rank)
        seq.state = SequenceState.RUNNING

    def vacate(self, seq: Sequence) -> None:
        """Takes a running sequence's blocks away; it waits, and will be computed anew."""
        self.running.remove(seq)
        insort(self.waiting, seq, key=_rank)
        self._blocks.release(seq)
        seq.state = SequenceState.WAITING
        seq.num_computed_tokens = 0
        seq.num_preemptions += 1

    def vacate_all(self) -> None:
        """Puts every running sequence back; no step may be in flight."""
        for seq in list(self.running):
            self.vacate(seq)

    def remove(self, seq: Sequence) -> None:
        """Takes a sequence that ends out, wherever it is, and its blocks with it."""
        (self.waiting if seq.state is SequenceState.WAITING else self.running).remove(seq)
        self._blocks.release(seq)
        seq.state = SequenceState.FINISHED
