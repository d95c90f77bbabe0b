"""The text of `/metrics`."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from deployments.metrics.families import gauge
from deployments.metrics.http_metrics import IngressReport, http_metrics
from deployments.metrics.replica_metrics import PREFIX, replica_metrics
from deployments.metrics.vllm_metrics import vllm_metrics
from deployments.replicas.report import ReplicaReport
from qwen3_a8w8.version import __version__


@dataclass(frozen=True, slots=True)
class Exposition:
    """What `/metrics` has besides the reports.

    Attributes:
        model: the model's name in the API.
        commit: of the code; None outside a checkout.
        has_vllm_names: the replicas' values under vLLM's names too.
    """

    model: str
    commit: str | None
    has_vllm_names: bool

    def text(self, replicas: Sequence[ReplicaReport], ingresses: Sequence[IngressReport]) -> bytes:
        """The reports in Prometheus text format."""
        registry = CollectorRegistry()
        registry.register(_Families(self._families(replicas, ingresses)))
        return generate_latest(registry)

    def _families(
        self, replicas: Sequence[ReplicaReport], ingresses: Sequence[IngressReport]
    ) -> Iterator[Metric]:
        labels = {
            "version": __version__,
            "commit": self.commit or "",
            "python": platform.python_version(),
            "model_name": self.model,
        }
        yield gauge(f"{PREFIX}_build_info", "version that serves", [(labels, 1)])
        yield from replica_metrics(replicas)
        yield from http_metrics(ingresses)
        if self.has_vllm_names:
            yield from vllm_metrics(self.model, replicas, ingresses)


class _Families:
    """A collector over families that exist already."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)
