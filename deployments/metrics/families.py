"""From values of reports to metric families."""

from __future__ import annotations

import math
import resource
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from qwen3_a8w8.engine.stats.request_stats import Histogram

Labels = Mapping[str, str]

_Family = TypeVar("_Family", GaugeMetricFamily, CounterMetricFamily)


def gauge(name: str, text: str, samples: Iterable[tuple[Labels, float]]) -> GaugeMetricFamily:
    """A gauge; all samples have the same label names."""
    pairs = list(samples)
    return _filled(GaugeMetricFamily(name, text, labels=_names(pairs)), pairs)


def counter(name: str, text: str, samples: Iterable[tuple[Labels, float]]) -> CounterMetricFamily:
    """A counter; its name is without `_total`."""
    pairs = list(samples)
    return _filled(CounterMetricFamily(name, text, labels=_names(pairs)), pairs)


def histogram(
    name: str, text: str, samples: Iterable[tuple[Labels, Histogram]]
) -> HistogramMetricFamily:
    """A histogram."""
    pairs = list(samples)
    family = HistogramMetricFamily(name, text, labels=_names(pairs))
    for labels, values in pairs:
        buckets = [(_bound(le), count) for le, count in values.cumulative()]
        family.add_metric(list(labels.values()), buckets, values.total)
    return family


def resident_bytes(pid: int) -> int | None:
    """Resident memory of a process on this machine; None where there is no /proc, or it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * resource.getpagesize()


def _names(pairs: Sequence[tuple[Labels, object]]) -> list[str]:
    return list(pairs[0][0]) if pairs else []


def _filled(family: _Family, pairs: Sequence[tuple[Labels, float]]) -> _Family:
    for labels, value in pairs:
        family.add_metric(list(labels.values()), value)
    return family


def _bound(value: float) -> str:
    return "+Inf" if math.isinf(value) else repr(float(value))
