"""Health, readiness, version and metrics."""

import re
from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from deployments.http.status_routes import HEALTH_TIMEOUT_S
from qwen3_a8w8 import __version__
from qwen3_a8w8.errors import EngineDeadError, EngineNotReadyError
from qwen3_a8w8.experimental import FLAGS


async def test_ready_and_health_follow_the_engine(http, engine):
    assert (await http.get("/health")).json() == {"status": "ok"}
    assert (await http.get("/ready")).json() == {"status": "ready", "model": "tiny"}
    engine.core.fail_all(OSError("device lost"))
    for path in ("/health", "/ready"):
        answer = await http.get(path)
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "engine_dead"


async def test_ready_is_503_and_version_answers_while_no_model_is_loaded(http, engine):
    async def nobody():
        raise EngineDeadError("no replica yet")

    engine.capabilities = nobody
    answer = await http.get("/ready")
    assert answer.status_code == 503
    assert "no replica has loaded the model" in answer.json()["error"]["message"]
    version = (await http.get("/version")).json()
    assert version["device"] is None
    assert version["experimental"]["prompt_lookup"]["enabled"] is None


async def test_health_and_ready_give_a_failing_replica_one_budget_in_total(http, engine):
    given_s = []

    async def silent(timeout_s):
        given_s.append(timeout_s)
        raise EngineNotReadyError("no replica answered")

    engine.check_ready = silent
    for path in ("/health", "/ready"):
        assert (await http.get(path)).status_code == 503
    assert given_s[0] == HEALTH_TIMEOUT_S
    assert 0 <= given_s[1] <= HEALTH_TIMEOUT_S


async def test_version_reports_what_runs(http, engine):
    description = {"device": "fake", "flags": "int8_lm_head, prompt_lookup"}
    engine.core._capabilities = replace(engine.core.capabilities, description=description)
    body = (await http.get("/version")).json()
    assert body["version"] == __version__
    assert body["commit"] is None or re.fullmatch(r"[0-9a-f]{40}(-dirty)?", body["commit"])
    assert (body["model"], body["max_model_len"]) == ("tiny", 256)
    assert body["device"] == description
    assert body["experimental"].keys() == FLAGS.keys()
    assert {name for name, flag in body["experimental"].items() if flag["enabled"]} == {
        "int8_lm_head",
        "prompt_lookup",
    }


async def test_metrics_have_every_replica(http, engine):
    (report,) = await engine.reports(1)
    other = replace(report, replica_id="fake#2", replica_pid=3)

    async def two(timeout_s):
        return [report, other]

    engine.reports = two
    families = list(text_string_to_metric_families((await http.get("/metrics")).text))
    assert families
    for family in families:
        replicas = {sample.labels["replica"] for sample in family.samples if not is_other(sample)}
        assert replicas in ({"fake#1", "fake#2"}, set()), family.name
    names = {family.name for family in families}
    assert {"qwen3_a8w8_num_requests_running", "qwen3_a8w8_kv_cache_usage_perc"} <= names


def is_other(sample):
    """A sample of the build or of an ingress process."""
    return "ingress" in sample.labels or sample.name == "qwen3_a8w8_build_info"
