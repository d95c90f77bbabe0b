"""Report of the quantisation errors of each linear, as numbers, JSON and a plot.

Owns the report's schema and the suggestion which linears to keep in floating point;
doesn't measure.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qwen3_a8w8.checkpoint.names import LINEAR_NAMES
from qwen3_a8w8.errors import ConfigError

REPORT_FILE = "quantization_report.json"
OUTLYING = 4.0
"""A linear is suggested if its error exceeds this multiple of the median of its name."""


@dataclass(frozen=True, slots=True)
class LinearReport:
    """One linear.

    Attributes:
        module: its path.
        layer: its layer.
        name: its short name.
        is_kept: it stayed in floating point; the errors are then those it would have in int8.
        weight_error: |w - w_q * s| / |w| (Frobenius norms).
        output_error: |y - y_q| / |y| on calibration tokens, both operands quantised; None
            without calibration data.
        outlier_ratio: largest magnitude of an input channel over the median of all channels, on
            calibration data after smoothing; None without calibration data.
    """

    module: str
    layer: int
    name: str
    is_kept: bool
    weight_error: float
    output_error: float | None
    outlier_ratio: float | None

    @property
    def error(self) -> float:
        """The output's error if known, otherwise the weight's."""
        return self.weight_error if self.output_error is None else self.output_error


def suggest_float(reports: Sequence[LinearReport]) -> list[str]:
    """Module paths of the linears with outlying errors, worst first.

    A linear is compared with the median of the same name over all layers, since q_proj and
    down_proj have errors of different magnitude.
    """
    medians = {
        name: statistics.median([report.error for report in reports if report.name == name] or [0])
        for name in LINEAR_NAMES
    }
    outlying = [r for r in reports if r.error > OUTLYING * medians[r.name] and not r.is_kept]
    return [r.module for r in sorted(outlying, key=lambda r: -r.error)]


def write_report(
    path: Path, reports: Sequence[LinearReport], settings: dict[str, Any]
) -> list[str]:
    """Writes the report as JSON.

    Args:
        path: the file.
        reports: all linears.
        settings: how they were quantised.

    Returns:
        The suggestion.
    """
    suggestion = suggest_float(reports)
    content = {
        "settings": settings,
        "suggested_keep_float": suggestion,
        "linears": [asdict(report) for report in reports],
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return suggestion


def plot_report(report_file: Path, picture: Path) -> None:
    """Plots errors over layers, one curve per linear name.

    Args:
        report_file: JSON written by `write_report`.
        picture: output file; the suffix selects the format.

    Raises:
        ConfigError: matplotlib isn't installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            "a picture needs matplotlib, which isn't installed; install it with "
            "pip install -e '.[plots]'"
        ) from error
    linears = json.loads(report_file.read_text(encoding="utf-8"))["linears"]
    rows = [
        ("weight_error", "weight error"),
        ("output_error", "output error"),
        ("outlier_ratio", "outliers"),
    ]
    rows = [row for row in rows if linears and linears[0][row[0]] is not None]
    figure = Figure(figsize=(9, 3 * len(rows)), layout="constrained")
    for number, (field, title) in enumerate(rows, start=1):
        axes = figure.add_subplot(len(rows), 1, number)
        for name in LINEAR_NAMES:
            points = [(line["layer"], line[field]) for line in linears if line["name"] == name]
            axes.plot(*zip(*points, strict=True), marker=".", label=name)
        axes.set_yscale("log")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_ylabel(title)
        axes.grid(alpha=0.3)
    figure.axes[0].legend(ncols=4, fontsize="small")
    figure.axes[-1].set_xlabel("layer")
    figure.savefig(str(picture))
