"""Runs against the real routes under uvicorn, over a fake engine."""

import contextlib
import io
import json
from dataclasses import replace

import pytest
from fastapi import FastAPI
from fastapi.responses import JSONResponse, StreamingResponse
from rich.console import Console
from typer.testing import CliRunner

from qwen3_a8w8.bench.serve import report, server
from qwen3_a8w8.bench.serve.dataset import SampleRequest
from qwen3_a8w8.bench.serve.dataset_settings import DatasetSettings
from qwen3_a8w8.bench.serve.engine_replay import check_comparable, compare, overhead, replay
from qwen3_a8w8.bench.serve.metrics import DETAILS, Latencies, summarize
from qwen3_a8w8.bench.serve.run import Run, run_load
from qwen3_a8w8.bench.serve.settings import (
    ResultSettings,
    ServeBench,
    ServerSettings,
    TrafficSettings,
)
from qwen3_a8w8.bench.serve.stream import RequestOutput
from qwen3_a8w8.cli.main import app as command_line
from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.engine.request import EngineRequest
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.errors import ConfigError
from tests.support.fake_deployment import FakeEngine, text_capabilities
from tests.support.fakes import FakeRunner, make_capabilities
from tests.support.http_application import build_application
from tests.support.listening import listening

# vLLM 0.32: what `vllm bench serve --save-result --save-detailed` writes besides the metrics.
VLLM_DESCRIPTION = {
    *("date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts"),
    *("request_rate", "burstiness", "max_concurrency"),
}


@contextlib.asynccontextmanager
async def serving(directory, **config):
    engine = FakeEngine(text_capabilities(directory), EngineConfig(**config))
    try:
        async with listening(build_application(directory, engine)) as url:
            yield url, engine
    finally:
        await engine.close()


def bench_of(url, *, server=None, dataset=None, traffic=None, result=None):
    return ServeBench(
        ServerSettings(base_url=url, **(server or {})),
        DatasetSettings(**{"num_prompts": 12, "input_len": 9, "output_len": 6} | (dataset or {})),
        TrafficSettings(**traffic or {}),
        ResultSettings(**{"disable_tqdm": True} | (result or {})),
    )


def console():
    return Console(file=io.StringIO(), width=100)


@pytest.mark.parametrize("backend", ["openai", "openai-chat"])
async def test_load_runs_every_request_to_its_length(tokenizer_dir, tokenizer, backend):
    async with serving(tokenizer_dir) as (url, engine):
        bench = bench_of(url, server={"backend": backend}, traffic={"max_concurrency": 4})
        run = await run_load(bench, console())
        stats = engine.core.stats()
    result = run.result
    assert result.keys() >= VLLM_DESCRIPTION
    assert (result["model_id"], result["request_rate"], result["max_concurrency"]) == (
        "tiny",
        "inf",
        4,
    )
    assert (result["completed"], result["failed"]) == (12, 0)
    assert result["output_lens"] == [6] * 12
    assert stats.requests.num_generated_tokens == 72
    if backend == "openai":
        # Without a local tokenizer the server's own makes and counts the prompts.
        assert result["tokenizer_id"] == f"{url}/tokenize"
        assert result["input_lens"] == [9] * 12
        assert [len(tokenizer.encode(one.prompt)) for one in run.requests] == [9] * 12
    else:
        assert min(result["input_lens"]) > 9  # the template adds to the prompt
    assert result["total_input_tokens"] == stats.counters.num_prefix_query_tokens


async def test_engine_figures_are_those_of_the_load_alone(tokenizer_dir):
    async with serving(tokenizer_dir) as (url, engine):
        bench = bench_of(url, traffic={"max_concurrency": 1, "num_warmups": 2})
        before = engine.core.stats()
        run = await run_load(bench, console())
        counters = engine.core.stats().counters
    assert before.counters.decode_batches == {}
    figures = run.result["engine"]
    # One at a time: B1 only, five decode steps for each of the twelve; the warm-ups don't count.
    assert figures["decode_batches"]["b1"] == 60
    assert counters.decode_batches[1] == 70
    assert (figures["b1_batch_share"], figures["b1_row_share"]) == (1.0, 1.0)
    assert (figures["decode_fill_ratio"], figures["mean_rows_per_batch"]) == (1.0, 1.0)
    assert figures["num_preemptions"] == 0


async def test_progress_names_what_is_done(tokenizer_dir):
    async with serving(tokenizer_dir) as (url, _):
        shown = console()
        await run_load(bench_of(url, result={"disable_tqdm": False}), shown)
    assert "12/12" in shown.file.getvalue()


async def test_refused_requests_are_failures_with_the_server_s_words(tokenizer_dir):
    async with serving(tokenizer_dir) as (url, _):
        bench = bench_of(url, traffic={"extra_body": '{"temperature": -1}'})
        run = await run_load(bench, console())
        assert (run.result["completed"], run.result["failed"]) == (0, 12)
        assert "HTTP 400" in run.outputs[0].error
        assert "temperature" in run.outputs[0].error
        warm = bench_of(url, traffic={"extra_body": '{"temperature": -1}', "num_warmups": 1})
        with pytest.raises(ConfigError, match=r"warm-up request .* failed: HTTP 400"):
            await run_load(warm, console())


async def test_fields_reach_the_server_and_the_key_goes_with_every_request(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    seen = []
    app = FastAPI()

    @app.post("/v1/completions")
    async def completions(body: dict):
        seen.append(body)
        chunk = {"choices": [{"index": 0, "text": "a", "finish_reason": "length"}]}
        return StreamingResponse(iter([f"data: {json.dumps(chunk)}\n\n"]))

    @app.middleware("http")
    async def keys(request, call_next):
        if request.headers.get("authorization") != "Bearer secret":
            return JSONResponse({"error": "no key"}, 401)
        return await call_next(request)

    async with listening(app) as url:
        bench = bench_of(
            url,
            server={"model": "org/other", "served_model_name": "other"},
            dataset={"num_prompts": 1},
            traffic={"top_p": 0.5, "extra_body": '{"min_tokens": 2}', "logprobs": 3},
        )
        with pytest.warns(UserWarning, match="a word counts as a token"):
            run = await run_load(bench, console())
    (body,) = seen
    assert len(body.pop("prompt").split()) == 9
    assert body == {
        "model": "other",
        "max_tokens": 6,
        "logprobs": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "top_p": 0.5,
        "min_tokens": 2,
    }
    # A server of anybody's: no metrics, no usage, no tokenizer.
    assert (run.result["completed"], run.result["output_lens"]) == (1, [1])
    assert run.result["tokenizer_id"] is None
    assert "engine" not in run.result


async def test_server_that_is_not_there_is_an_error_with_its_url():
    with pytest.raises(ConfigError, match=r"http://127.0.0.1:1/v1/models can't be read"):
        await run_load(bench_of("http://127.0.0.1:1"), console())


async def test_comparison_needs_a_server_of_ours_that_names_its_model(tokenizer_dir):
    async with serving(tokenizer_dir) as (url, _):
        traffic = {"max_concurrency": 2}
        bench = bench_of(url, traffic=traffic, result={"compare_engine": True})
        named = replace(
            bench, server=ServerSettings(base_url=url, model="tiny", served_model_name="tiny")
        )
        run = await run_load(named, console())
        assert run.origin == "tiny"
        assert [len(ids) for ids in run.prompt_token_ids] == [9] * 12
        # Each run has a salt of its own, so that its prompts aren't cached from one before.
        again = await run_load(named, console())
    assert again.result["engine"]["prefix_cache_hit_rate"] == 0.0


def test_comparison_is_of_a_closed_loop():
    for traffic in ({}, {"max_concurrency": 17}, {"max_concurrency": 4, "request_rate": 2.0}):
        with pytest.raises(
            ConfigError, match="--compare-engine needs --max-concurrency of 1 to 16"
        ):
            check_comparable(bench_of("http://x", traffic=traffic))
    check_comparable(bench_of("http://x", traffic={"max_concurrency": 16}))


def test_comparison_runs_the_model_that_the_server_names():
    bench = bench_of(
        "http://x", traffic={"max_concurrency": 2, "temperature": 0.0, "repetition_penalty": 1.1}
    )
    requests = [SampleRequest("unused", 5, output_len) for output_len in (3, 4, 5)]
    ids = [tuple(range(20 + n, 25 + n)) for n in range(3)]
    served = [
        RequestOutput(start_s=0, prompt_len=5, ttft_s=9.0, latency_s=11.0, output_len=3)
        for _ in requests
    ]
    version = {
        "device": {"device": "cpu", "isa": "portable", "threads": 1},
        "experimental": {"prompt_lookup": {"enabled": False}},
    }
    found = compare(bench, Run({}, served, requests, version, "demo", ids))
    assert found["engine_completed"] == 3
    # The server took 9 s to the first token and 1 s per token.
    assert found["added_ttft_ms"] == pytest.approx(9000 - found["engine_median_ttft_ms"])
    assert found["tpot_ratio"] == pytest.approx(1000 / found["engine_median_tpot_ms"])


def test_run_in_which_everything_failed_ends_with_the_first_error(monkeypatch):
    async def refused(bench, console):
        outputs = [RequestOutput(0.0, 1, error="HTTP 503: full")] * 2
        described = {"model_id": "m", "request_rate": "inf", "max_concurrency": None}
        figures = summarize(
            outputs, 1.0, metrics=bench.result.metrics, percentiles=(99.0,), goodput_ms={}
        )
        return Run(described | figures, outputs, [], None, None, [])

    monkeypatch.setattr("qwen3_a8w8.bench.serve.run.run_load", refused)
    answer = CliRunner().invoke(command_line, ["bench", "serve", "--base-url", "http://x"])
    assert isinstance(answer.exception, ConfigError)
    assert str(answer.exception) == "all 2 requests failed, the first with: HTTP 503: full"


@pytest.mark.parametrize("concurrency", [1, 3])
def test_replay_runs_every_request_on_the_engine_alone(concurrency):
    capabilities = make_capabilities()
    requests = [
        EngineRequest(
            tuple(range(2, 2 + length)),
            SamplingParams(max_tokens=length, ignore_eos=True, seed=length),
        )
        for length in range(3, 10)
    ]
    config = EngineConfig(max_running_requests=concurrency)
    outputs = replay(FakeRunner(capabilities), config, requests, concurrency)
    assert sorted(output.output_len for output in outputs) == list(range(3, 10))
    assert all(output.output_len == output.prompt_len for output in outputs)
    for output in outputs:
        assert len(output.itl_s) == output.output_len - 1
        assert output.latency_s == pytest.approx(output.ttft_s + sum(output.itl_s))
        assert output.ttft_s > 0


def test_overhead_is_the_difference_of_medians():
    alone = [
        RequestOutput(start_s=0, prompt_len=1, ttft_s=t, latency_s=t + 0.04, output_len=3)
        for t in (0.1, 0.2, 0.3)
    ]
    served = Latencies([0.25, 0.35, 0.45], [0.03, 0.05], [0.03, 0.05], [], [1.0, 1.0, 1.0])
    found = overhead(served, alone)
    assert found["engine_completed"] == 3
    assert found["added_ttft_ms"] == pytest.approx(150)
    assert found["engine_median_tpot_ms"] == pytest.approx(20)
    assert found["tpot_ratio"] == pytest.approx(2.0)


def test_counters_add_up_instances_and_grow_from_zero_after_a_restart():
    text = """
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 3
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 4
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 28
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 14
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 7
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 3.5
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 5
"""
    found = server.parse_counters(text)
    assert found["vllm:spec_decode_num_drafts", frozenset()] == 7
    assert ("vllm:num_requests_running", frozenset()) not in found
    assert server.engine_figures(found) is None
    assert server.spec_decode_figures(server.growth({}, found)) == {
        "spec_decode_acceptance_rate": 50.0,
        "spec_decode_acceptance_length": 3.0,
        "spec_decode_num_drafts": 7,
        "spec_decode_draft_tokens": 28,
        "spec_decode_accepted_tokens": 14,
        "spec_decode_per_position_acceptance_rates": [1.0, 0.5],
    }
    key = ("n", frozenset())
    assert server.growth({key: 5.0}, {key: 7.0}) == {key: 2.0}
    assert server.growth({key: 5.0}, {key: 1.0}) == {key: 1.0}


@pytest.mark.serve
def test_command_measures_the_application_and_writes_everything(application, tmp_path):
    command = ["bench", "serve", "--base-url", application.url, "--num-prompts", "8"]
    command += ["--input-len", "12", "--output-len", "5", "--max-concurrency", "2"]
    command += ["--goodput", "ttft:60000", "e2el:60000", "--metadata", "site=here", "tp=1"]
    command += ["--percentile-metrics", "ttft,e2el", "--metric-percentiles", "50,99"]
    command += ["--save-result", "--result-dir", str(tmp_path / "results"), "--disable-tqdm"]
    command += ["--json", str(tmp_path / "out.json")]
    answer = CliRunner().invoke(command_line, command)
    assert answer.exit_code == 0, answer.output
    assert "time to first token" in answer.output
    assert "fill ratio of decode batches" in answer.output
    (path,) = (tmp_path / "results").iterdir()
    assert path.name.startswith("openai-infqps-concurrency2-tiny-")
    saved = json.loads(path.read_text())
    assert (saved["completed"], saved["total_output_tokens"]) == (8, 40)
    assert (saved["site"], saved["tp"]) == ("here", "1")
    assert saved["request_goodput"] == saved["request_throughput"]
    assert {"p50_ttft_ms", "p99_e2el_ms", "median_ttft_ms"} <= saved.keys()
    assert not {"mean_tpot_ms", *DETAILS} & saved.keys()
    assert saved["machine"]["read_gbps"] > 0
    content = json.loads((tmp_path / "out.json").read_text())
    assert content.keys() == {"provenance", "machine", "results"}
    assert content["provenance"]["server"]["model"] == "tiny"
    (entry,) = content["results"]
    assert {"bench", "engine", "median_ttft_ms"} <= entry.keys()


def test_appended_results_are_lines(tmp_path):
    path = tmp_path / "new" / "results.json"
    for number in range(2):
        report.save_result(path, {"duration": number}, is_appended=True)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"duration": 0},
        {"duration": 1},
    ]


def test_result_file_is_named_as_vllm_names_it(tmp_path):
    bench = bench_of("http://x", traffic={"request_rate": 2.5}, result={"label": "night"})
    assert report.result_path(bench, "org/m", "D").name == "night-2.5qps-m-D.json"
    ramp = {"ramp_up_strategy": "linear", "ramp_up_start_rps": 1, "ramp_up_end_rps": 5}
    bench = bench_of("http://x", traffic=ramp | {"max_concurrency": 3})
    assert report.result_path(bench, "m", "D").name == (
        "openai-ramp-up-linear-1qps-5qps-concurrency3-m-D.json"
    )


def test_picture_is_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="needs the plots extra")
    outputs = [
        RequestOutput(start_s=n / 4, prompt_len=3, ttft_s=0.2, itl_s=[0.3] * 5, latency_s=1.7)
        for n in range(20)
    ]
    report.plot(tmp_path / "run.png", outputs)
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


async def test_ramp_up_reports_when_each_rate_is_reached(tokenizer_dir):
    async with serving(tokenizer_dir) as (url, _):
        ramp = {"ramp_up_strategy": "linear", "ramp_up_start_rps": 100, "ramp_up_end_rps": 104}
        run = await run_load(bench_of(url, traffic=ramp, dataset={"num_prompts": 5}), console())
    events = run.result["rps_change_events"]
    assert [event["rps"] for event in events] == [100, 101, 102, 103, 104]
    assert sorted(event["timestamp"] for event in events) == [e["timestamp"] for e in events]
