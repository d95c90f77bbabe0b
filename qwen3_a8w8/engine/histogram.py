"""How often a measured value fell where, in fixed ranges."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field


def one_two_five(smallest: float, largest: float) -> tuple[float, ...]:
    """The bounds 1, 2, 5, 10, 20 ... times `smallest`, up to `largest`."""
    bounds = [smallest]
    while bounds[-1] < largest:
        step = (2.0, 2.5, 2.0)[(len(bounds) - 1) % 3]
        bounds.append(float(f"{bounds[-1] * step:.6g}"))
    return tuple(bounds)


@dataclass(slots=True)
class Histogram:
    """Counts by range.

    Attributes:
        bounds: upper bounds of the ranges, ascending; a bound belongs to its range.
        counts: values in each range; the last one counts those above all bounds.
        total: sum of the values.
    """

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        """Makes room for the counts."""
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    @property
    def count(self) -> int:
        """How many values there are."""
        return sum(self.counts)

    def observe(self, value: float, count: int = 1) -> None:
        """Adds a value, `count` times."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    def copy(self) -> Histogram:
        """One that doesn't grow with this one."""
        return Histogram(self.bounds, list(self.counts), self.total)

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """(bound, values up to it), the last bound being infinite."""
        so_far = 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            so_far += count
            yield bound, so_far
