"""Turns the runs of one comparison into figures, ratios and a table. Standard library only.

The machine drifts while engines run one after the other. So this project's engine runs
before and after each of the others, and a ratio compares a run with its two neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

OURS = "ours"
FIGURES = {"b1": "b1_step_s", "b16": "b16_step_s", "prefill": "prefill_s"}
"""Each figure, and the list of seconds in a run's result that it is the median of."""

Run = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """One engine.

    Attributes:
        name: the engine.
        seconds: each figure of `FIGURES`: the median of the medians of its runs.
        spread: each figure: slowest over fastest of these medians, 1 if it ran once.
        ratios: each figure: its time over this project's, from neighbouring runs; above 1 where
            this project is faster.
        agreement: share of first tokens that are this project's too.
    """

    name: str
    seconds: dict[str, float]
    spread: dict[str, float]
    ratios: dict[str, float]
    agreement: float


def figure(run: Run, name: str) -> float:
    """One of `FIGURES` of one run, in seconds."""
    seconds: list[float] = run[FIGURES[name]]
    return median(seconds)


def rows(runs: Sequence[Run]) -> list[Row]:
    """Puts the runs of each engine together.

    Args:
        runs: results of adapters in the order in which they ran, the first and last ours.

    Raises:
        ValueError: another engine ran first or last, so that a neighbour is missing.
    """
    names = [run["peer"] for run in runs]
    if not runs or names[0] != OURS or names[-1] != OURS:
        raise ValueError(f"the order of runs is {names}, expected {OURS!r} first and last")
    return [_row(name, runs, names) for name in dict.fromkeys(names)]


def best_ratios(table: Sequence[Row], ours: str = OURS) -> dict[str, float]:
    """Each figure: time of the best peer over that of `ours` or another variant of ours.

    Args:
        table: what `rows` gave.
        ours: name of the variant; names that begin with "ours" are no peers.

    Raises:
        ValueError: there is no peer.
    """
    peers = [row for row in table if not row.name.startswith(OURS)]
    if not peers:
        raise ValueError("no peer has run, there is nothing to compare with")
    (variant,) = [row for row in table if row.name == ours]
    return {
        name: min(peer.ratios[name] for peer in peers) / variant.ratios[name] for name in FIGURES
    }


def markdown(table: Sequence[Row], *, batch_size: int, prefill_tokens: int) -> str:
    """The table as docs/performance.md has it.

    Args:
        table: what `rows` gave.
        batch_size: sequences of figure "b16".
        prefill_tokens: prompt tokens of figure "prefill".
    """
    lines = [
        "| engine | B1 ms per token | B16 tokens/s | prefill tokens/s "
        "| time over ours: B1 | B16 | prefill | slowest over fastest run | same first tokens |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in table:
        cells = [
            row.name,
            f"{row.seconds['b1'] * 1e3:.2f}",
            f"{batch_size / row.seconds['b16']:.1f}",
            f"{prefill_tokens / row.seconds['prefill']:.0f}",
            *(f"{row.ratios[name]:.2f}" for name in FIGURES),
            f"{max(row.spread.values()):.2f}",
            f"{row.agreement:.0%}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    for variant in [row.name for row in table if row.name.startswith(OURS)]:
        best = best_ratios(table, variant)
        cells = [f"best peer over {variant}", "", "", "", *(f"{best[name]:.2f}" for name in best)]
        lines.append(f"| {' | '.join([*cells, '', ''])} |")
    return "\n".join(lines)


def _row(name: str, runs: Sequence[Run], names: Sequence[str]) -> Row:
    places = [place for place, other in enumerate(names) if other == name]
    own = {each: [figure(runs[place], each) for place in places] for each in FIGURES}
    if name == OURS:
        ratios = dict.fromkeys(FIGURES, 1.0)
    else:
        ratios = {
            each: median(figure(runs[place], each) / _beside(runs, place, each) for place in places)
            for each in FIGURES
        }
    return Row(
        name=name,
        seconds={each: median(values) for each, values in own.items()},
        spread={each: max(values) / min(values) for each, values in own.items()},
        ratios=ratios,
        agreement=_agreement(runs[0], runs[places[0]]),
    )


def _beside(runs: Sequence[Run], place: int, name: str) -> float:
    before = next(run for run in reversed(runs[:place]) if run["peer"] == OURS)
    after = next(run for run in runs[place + 1 :] if run["peer"] == OURS)
    return mean([figure(before, name), figure(after, name)])


def _agreement(ours: Run, other: Run) -> float:
    return mean(
        float(left == right)
        for field in ("first_ids", "b16_ids")
        for left, right in zip(ours[field], other[field], strict=True)
    )
