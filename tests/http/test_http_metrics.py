"""Counting requests, and a real Prometheus that scrapes the routes."""

import asyncio
import subprocess

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from deployments.http.api import build_api
from deployments.ingress.service import ModelService
from deployments.metrics.http_metrics import HttpMetrics
from deployments.settings import SecuritySettings
from qwen3_a8w8.config import EngineConfig
from tests.support.fake_deployment import FakeEngine, text_capabilities
from tests.support.http_application import running_http
from tests.support.listening import listening
from tests.support.prometheus import (
    DEADLINE_S,
    PROMTOOL,
    needs_prometheus,
    query,
    running_prometheus,
)


def counts(text):
    """(method, route, status) -> responses."""
    return {
        (s.labels["method"], s.labels["handler"], s.labels["status"]): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
        if s.name == "qwen3_a8w8_http_requests_total"
    }


async def test_routes_are_counted_as_declared_and_refusals_before_them_too(tokenizer_dir):
    body = {"prompt": "the fox", "max_tokens": 3, "n": 2, "ignore_eos": True}
    async with running_http(tokenizer_dir) as client:
        await client.post("/v1/completions", json=body)
        async with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as one:
            await one.aread()
        await client.post("/v1/completions", json={"prompt": 7})
        await client.get("/v1/models/tiny")
        await client.get("/v1/models/other")
        await client.get("/nothing/here")
        await client.post("/v1/completions", content=b"x", headers={"content-type": "text/plain"})
        await client.request("BREW", "/v1/models")
        text = (await client.get("/metrics")).text
        again = (await client.get("/metrics")).text
    assert counts(text) == {
        ("POST", "/v1/completions", "200"): 2,
        ("POST", "/v1/completions", "400"): 1,
        ("GET", "/v1/models/{name:path}", "200"): 1,
        ("GET", "/v1/models/{name:path}", "404"): 1,
        ("GET", "none", "404"): 1,
        ("POST", "none", "415"): 1,
        ("other", "/v1/models", "405"): 1,
    }
    assert counts(again)["GET", "/metrics", "200"] == 1
    (choices,) = [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "qwen3_a8w8_request_params_n_sum"
    ]
    assert choices == 4


async def test_request_without_a_key_is_counted(tokenizer_dir, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("a-key-that-is-long-enough\n")
    security = SecuritySettings(api_key_file=str(keys))
    async with running_http(tokenizer_dir, security=security) as client:
        await client.get("/v1/models")
        headers = {"authorization": "Bearer a-key-that-is-long-enough"}
        text = (await client.get("/metrics", headers=headers)).text
    assert counts(text) == {("GET", "none", "401"): 1}


@pytest.fixture
async def url(tokenizer_dir):
    """The routes with vLLM's names on a real port."""
    engine = FakeEngine(text_capabilities(tokenizer_dir), EngineConfig())
    service = ModelService("tiny", tokenizer_dir, engine, decode_batch_sizes=(1, 16))
    app = build_api(service, max_body_bytes=2**20, has_vllm_names=True)
    app.add_middleware(HttpMetrics, stats=service.http_stats)
    async with listening(app) as url:
        yield url
    await engine.close()


async def generate(url):
    async with httpx.AsyncClient(base_url=url, timeout=DEADLINE_S) as client:
        body = {"prompt": "the fox", "max_tokens": 6, "ignore_eos": True}
        assert (await client.post("/v1/completions", json=body)).status_code == 200


@needs_prometheus
async def test_promtool_has_nothing_to_complain_about(url):
    await generate(url)
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"{url}/metrics")).text
    # It checks our own names; vLLM's have colons, which are meant for recording rules.
    lines = [line for line in text.splitlines() if "vllm:" not in line]
    checked = await asyncio.to_thread(
        subprocess.run,
        [PROMTOOL, "check", "metrics"],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert checked.stderr == ""
    assert checked.returncode == 0


@needs_prometheus
async def test_prometheus_scrapes_every_metric(url, tmp_path):
    await generate(url)
    scrape = {
        "job_name": "qwen3",
        "scrape_interval": "1s",
        "scrape_timeout": "1s",
        "static_configs": [{"targets": [url.removeprefix("http://")]}],
    }
    async with running_prometheus({"scrape_configs": [scrape]}, tmp_path) as client:
        assert await query(client, "vllm:generation_tokens_total{engine='0'}") == [6.0]
        assert await query(client, "qwen3_a8w8_generation_tokens_total") == [6.0]
        finished = "vllm:request_success_total{finished_reason='length'}"
        assert await query(client, finished) == [1]
        quantile = "histogram_quantile(0.5, vllm:request_generation_tokens_bucket)"
        assert 5 < (await query(client, quantile))[0] <= 10
        used = 'count({__name__=~"vllm:.+", model_name="tiny"}) > bool 100'
        assert await query(client, used) == [1.0]
