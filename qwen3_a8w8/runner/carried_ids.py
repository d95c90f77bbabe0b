"""Which sequences' newest ids lie where the device has sampled them.

A decode row continues from the newest id of its sequence (docs/adr/0002), which the device has
sampled itself, mostly in the step before. On a device with memory of its own the row takes it from
there: `[B, 8]` ids are copied on the device, and don't come back from the host. Ids of prefill and
decode have halves of one table, as a step's prefill is sampled before its decode reads the ids of
the step before.

Knows neither tensors nor plans: rows of the table, sequences and positions.
"""

from __future__ import annotations

import enum

UPLOADED = -1
"""In place of a row of the table: the host uploads the id."""


class Stage(enum.IntEnum):
    """What ids were sampled after; their half of the table."""

    PREFILL = 0
    DECODE = 1


class CarriedIds:
    """Places of sampled ids in the device's table [2 * num_rows, 8].

    Attributes:
        num_rows: most rows of one sampling.
    """

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self._places: dict[int, tuple[int, int]] = {}  # seq_id -> (row of the table, position)
        self._holders: dict[int, int] = {}  # row of the table -> seq_id

    def first_row(self, stage: Stage) -> int:
        """First row of a stage's half."""
        return stage * self.num_rows

    def overwrite(self, stage: Stage) -> None:
        """A stage is sampled: what its half holds is lost."""
        first = self.first_row(stage)
        for row in range(first, first + self.num_rows):
            self._drop(row)

    def put(self, stage: Stage, row: int, seq_id: int, position: int) -> None:
        """A row of a sampling holds a sequence's newest id.

        Args:
            stage: what was sampled.
            row: of the sampling.
            seq_id: the sequence.
            position: of the id in it.
        """
        self.forget(seq_id)
        place = self.first_row(stage) + row
        self._drop(place)
        self._places[seq_id] = (place, position)
        self._holders[place] = seq_id

    def row_of(self, seq_id: int, position: int) -> int:
        """Row of the table with a sequence's id at a position; UPLOADED: it isn't there."""
        place = self._places.get(seq_id)
        return UPLOADED if place is None or place[1] != position else place[0]

    def forget(self, seq_id: int) -> None:
        """A sequence was released, or is registered again; unknown ones are ignored."""
        place = self._places.pop(seq_id, None)
        if place is not None:
            del self._holders[place[0]]

    def _drop(self, place: int) -> None:
        seq_id = self._holders.pop(place, None)
        if seq_id is not None:
            del self._places[seq_id]
