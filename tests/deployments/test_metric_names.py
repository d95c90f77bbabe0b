"""`/metrics`: names, labels and values, read back by the format's own parser."""

from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from deployments.metrics.exposition import Exposition
from deployments.metrics.families import resident_bytes
from deployments.metrics.http_metrics import HttpStats, choices_histogram
from deployments.replicas.failover import EngineLost
from deployments.replicas.failover_log import FailoverLog
from deployments.replicas.report import ReplicaReport
from qwen3_a8w8 import __version__
from qwen3_a8w8.engine.request import EngineRequest, TokenEvent
from qwen3_a8w8.engine.sampling_params import SamplingParams
from tests.engine.test_queue import Clock, make_core, step
from tests.support.fakes import COPYING_SEED, FakeRunner

# vLLM's names (0.32, vllm/v1/metrics/loggers.py and spec_decode/metrics.py) and their types.
VLLM = {
    "num_requests_running": "gauge",
    "num_requests_waiting": "gauge",
    "kv_cache_usage_perc": "gauge",
    "cache_config_info": "gauge",
    "prefix_cache_queries": "counter",
    "prefix_cache_hits": "counter",
    "num_preemptions": "counter",
    "prompt_tokens": "counter",
    "prompt_tokens_cached": "counter",
    "generation_tokens": "counter",
    "request_success": "counter",
    "spec_decode_num_drafts": "counter",
    "spec_decode_num_draft_tokens": "counter",
    "spec_decode_num_accepted_tokens": "counter",
    "spec_decode_num_accepted_tokens_per_pos": "counter",
    "iteration_tokens_total": "histogram",
    "time_to_first_token_seconds": "histogram",
    "inter_token_latency_seconds": "histogram",
    "request_time_per_output_token_seconds": "histogram",
    "e2e_request_latency_seconds": "histogram",
    "request_queue_time_seconds": "histogram",
    "request_inference_time_seconds": "histogram",
    "request_prefill_time_seconds": "histogram",
    "request_decode_time_seconds": "histogram",
    "request_prompt_tokens": "histogram",
    "request_generation_tokens": "histogram",
    "request_max_num_generation_tokens": "histogram",
    "request_params_n": "histogram",
    "request_params_max_tokens": "histogram",
}


@pytest.fixture(scope="module")
def report():
    """Of an engine that has run three sequences on a clock that goes 2 s per step."""
    clock = Clock()
    core = make_core(clock=clock, enable=("prompt_lookup",))
    runner = FakeRunner(core.capabilities)
    sampling = SamplingParams(max_tokens=5, seed=1, ignore_eos=True)
    core.add(EngineRequest(tuple(range(2, 12)), sampling))
    core.add(EngineRequest(tuple(range(30, 37)), sampling))
    while core.num_active_sequences:
        clock.now_s += 2.0
        step(core, runner)
    # Alone and repeating itself, so that draft tokens are accepted.
    copying = SamplingParams(max_tokens=40, seed=COPYING_SEED, ignore_eos=True)
    core.add(EngineRequest(tuple(2 + position % 6 for position in range(20)), copying))
    while core.num_active_sequences:
        clock.now_s += 2.0
        step(core, runner)
    return ReplicaReport("r#b", 11, 12, core.stats(), replica_bytes=4096, actor_bytes=8192)


def ingress(*statuses):
    stats, choices = HttpStats(num_in_flight=2), choices_histogram()
    for status in statuses:
        stats.count(("POST", "/v1/completions"), status, 0.25)
        choices.observe(2)
    return replace(stats.report("i#1", choices), resident_bytes=1024)


def families(*reports, has_vllm_names=True, ingresses=()):
    exposition = Exposition("tiny", "abc", has_vllm_names)
    text = exposition.text(reports, ingresses).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(family, **labels):
    (found,) = [s.value for s in family.samples if labels.items() <= s.labels.items()]
    return found


def histogram(family, **labels):
    """Count and sum."""
    samples = [s for s in family.samples if labels.items() <= s.labels.items()]
    return tuple(
        next(s.value for s in samples if s.name == f"{family.name}_{part}")
        for part in ("count", "sum")
    )


def test_vllm_names_are_all_there_with_types_and_labels(report):
    found = families(report, ingresses=[ingress(200)])
    own = {name.removeprefix("vllm:"): family for name, family in found.items() if ":" in name}
    assert {name: family.type for name, family in own.items()} == VLLM
    for name, family in own.items():
        assert family.samples, name
        for sample in family.samples:
            assert sample.labels["model_name"] == "tiny", name
            assert sample.labels["engine"] == ("" if name == "request_params_n" else "0"), name


def test_vllm_names_are_off_by_default(report):
    assert not [name for name in families(report, has_vllm_names=False) if ":" in name]


def test_values_are_the_same_under_both_names(report):
    found = families(report, ingresses=[ingress(200, 200)])
    for name, kind in VLLM.items():
        own_name = {
            "iteration_tokens_total": "step_tokens",
            "prompt_tokens_cached": "prefix_cache_hits",
            "request_max_num_generation_tokens": "request_generation_tokens",
        }.get(name, name)
        if name == "cache_config_info":
            continue
        own, theirs = found[f"qwen3_a8w8_{own_name}"], found[f"vllm:{name}"]
        assert own.type == kind
        assert [s.value for s in own.samples] == [s.value for s in theirs.samples], name


def test_values_are_what_the_engine_did(report):
    found = families(report)
    labels = {"engine": "0"}
    assert value(found["vllm:generation_tokens"], **labels) == 50
    assert value(found["vllm:prompt_tokens"], **labels) == 37
    assert value(found["vllm:request_success"], finished_reason="length") == 3
    assert value(found["vllm:num_requests_running"]) == 0
    assert histogram(found["vllm:request_prompt_tokens"]) == (3, 37)
    assert histogram(found["vllm:request_params_max_tokens"]) == (3, 50)
    # Every token and every prompt position of every step is counted once.
    assert histogram(found["vllm:iteration_tokens_total"])[1] == 50 + 37 - value(
        found["vllm:prompt_tokens_cached"]
    )
    info = found["vllm:cache_config_info"].samples[0].labels
    assert (info["block_size"], info["num_gpu_blocks"]) == ("4", "64")


def test_times_add_up(report):
    found = families(report)
    queue, prefill, decode, inference, e2e = (
        histogram(found[f"vllm:{name}_seconds"])
        for name in (
            "request_queue_time",
            "request_prefill_time",
            "request_decode_time",
            "request_inference_time",
            "e2e_request_latency",
        )
    )
    assert {part[0] for part in (queue, prefill, decode, inference, e2e)} == {3}
    assert inference[1] == prefill[1] + decode[1]
    assert e2e[1] == queue[1] + inference[1]
    assert prefill[1] + queue[1] == histogram(found["vllm:time_to_first_token_seconds"])[1]
    assert decode[1] > 0


def test_drafts_are_counted_by_position(report):
    found = families(report)
    accepted = value(found["vllm:spec_decode_num_accepted_tokens"])
    by_position = [s.value for s in found["vllm:spec_decode_num_accepted_tokens_per_pos"].samples]
    drafts = value(found["vllm:spec_decode_num_drafts"])
    assert accepted == sum(by_position) > 0
    assert by_position == sorted(by_position, reverse=True)
    assert by_position[0] <= drafts <= value(found["vllm:spec_decode_num_draft_tokens"])
    # Each of the copying sequence's steps gives one token more than it accepts.
    assert accepted < 39


def test_engines_are_numbered_in_the_order_of_their_replicas(report):
    other = replace(report, replica_id="r#c")
    found = families(report, other)
    running = found["vllm:num_requests_running"].samples
    assert [sample.labels["engine"] for sample in running] == ["0", "1"]
    assert [s.labels["replica"] for s in found["qwen3_a8w8_steps"].samples] == ["r#b", "r#c"]


def test_build_and_memory_are_reported(report):
    found = families(report, ingresses=[ingress()])
    (build,) = found["qwen3_a8w8_build_info"].samples
    assert (build.labels["version"], build.labels["commit"]) == (__version__, "abc")
    memory = found["qwen3_a8w8_process_resident_memory_bytes"]
    assert value(memory, process="batch_router") == 4096
    assert value(memory, process="actor") == 8192
    assert value(found["qwen3_a8w8_ingress_resident_memory_bytes"]) == 1024


def test_unknown_memory_is_left_out(report):
    found = families(replace(report, actor_bytes=None))
    (sample,) = found["qwen3_a8w8_process_resident_memory_bytes"].samples
    assert sample.labels["process"] == "batch_router"


def test_resident_memory_is_of_the_process_asked_for(tmp_path):
    import os

    assert resident_bytes(os.getpid()) > 10 << 20
    assert resident_bytes(2**22 + 1) is None  # above the largest process id


def test_http_requests_are_counted_by_route_and_status(report):
    found = families(report, ingresses=[ingress(200, 200, 503)])
    requests = found["qwen3_a8w8_http_requests"]
    assert value(requests, status="200", handler="/v1/completions", method="POST") == 2
    assert value(requests, status="503", ingress="i#1") == 1
    assert histogram(found["qwen3_a8w8_http_request_duration_seconds"]) == (3, 0.75)
    assert value(found["qwen3_a8w8_http_requests_in_flight"]) == 2
    assert histogram(found["qwen3_a8w8_request_params_n"]) == (3, 6)


def test_failovers_are_counted_by_outcome_from_zero():
    log = FailoverLog()
    stats = HttpStats()

    def report():
        return families(ingresses=[stats.report("i#1", choices_histogram(), log)])

    failovers = report()["qwen3_a8w8_failovers"]
    assert {s.labels["outcome"]: s.value for s in failovers.samples} == {"resumed": 0, "ended": 0}
    with log.watching() as see:
        see(EngineLost("the actor is gone"))
        see(TokenEvent(0, (1,)))
        see(EngineLost("again"))
        see(TokenEvent(0, (2,), finish_reason="length"))
    with log.watching() as see:
        see(EngineLost("and nobody takes it"))
    failovers = report()["qwen3_a8w8_failovers"]
    assert {s.labels["outcome"]: s.value for s in failovers.samples} == {"resumed": 2, "ended": 1}
