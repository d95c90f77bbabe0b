"""Metrics of several ingress processes, whichever of them is asked."""

import pytest
from prometheus_client.parser import text_string_to_metric_families
from ray import serve

from deployments.app import build_app
from deployments.settings import AppSettings
from tests.support.cluster import wait_until
from tests.support.fake_deployment import FAKE_RUNNER

pytestmark = pytest.mark.serve

NAME = "two-ingresses"


@pytest.fixture(scope="module")
def settings(application):
    return AppSettings(
        model=str(application.directory),
        served_model_name="tiny",
        runner_factory=FAKE_RUNNER,
        metrics={"vllm_names": True},
        # The other application has reserved nearly all there is.
        replicas={"batch_router_num_cpus": 0.05, "actor_num_cpus": 0.1},
        http={"num_replicas": 2, "num_cpus": 0.05},
    )


def test_every_ingress_process_is_in_the_metrics(application, settings):
    serve.run(build_app(settings), name=NAME, route_prefix=f"/{NAME}")
    try:
        with application.http() as http:

            def families():
                text = http.get(f"/{NAME}/metrics").text
                return {family.name: family for family in text_string_to_metric_families(text)}

            def ingresses():
                found = families().get("qwen3_a8w8_http_requests_in_flight")
                return {sample.labels["ingress"] for sample in found.samples} if found else set()

            wait_until(lambda: len(ingresses()) == 2, "both ingress processes report")
            for _ in range(6):
                http.get(f"/{NAME}/v1/models").raise_for_status()
            found = families()
        models = [
            sample.value
            for sample in found["qwen3_a8w8_http_requests"].samples
            if sample.labels["handler"] == "/v1/models" and sample.labels["status"] == "200"
        ]
        assert sum(models) == 6
        assert [s.labels for s in found["vllm:num_requests_running"].samples] == [
            {"model_name": "tiny", "engine": "0"}
        ]
        memory = found["qwen3_a8w8_process_resident_memory_bytes"].samples
        assert {sample.labels["process"] for sample in memory} == {"batch_router", "actor"}
        assert all(sample.value > 2**20 for sample in memory)
        assert len(found["qwen3_a8w8_ingress_resident_memory_bytes"].samples) == 2
    finally:
        serve.delete(NAME)
