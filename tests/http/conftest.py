"""The routes over a fake engine, in this process."""

from contextlib import asynccontextmanager

import httpx
import openai
import pytest

from deployments.http.api import build_api
from deployments.ingress.service import ModelService
from qwen3_a8w8.config import EngineConfig
from tests.support.fake_deployment import FakeEngine, text_capabilities

MAX_BODY_BYTES = 20_000


@pytest.fixture(scope="session")
def model_directory(tokenizer_dir):
    return tokenizer_dir


@pytest.fixture
async def engine(model_directory):
    engine = FakeEngine(text_capabilities(model_directory), EngineConfig(max_queued_requests=4))
    yield engine
    await engine.close()
    assert engine.core.stats().num_blocks_in_use == 0
    assert engine.core.num_active_sequences == 0


@pytest.fixture
def service(engine, model_directory):
    return ModelService("tiny", model_directory, engine, decode_batch_sizes=(1, 16))


@asynccontextmanager
async def running(service, **settings):
    transport = httpx.ASGITransport(app=build_api(service, max_stored_responses=4, **settings))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


@pytest.fixture
async def http(service):
    async with running(service, max_body_bytes=MAX_BODY_BYTES) as client:
        yield client


@pytest.fixture
async def wide_http(service):
    """With a body limit that is no hindrance."""
    async with running(service, max_body_bytes=2**24) as client:
        yield client


@pytest.fixture
def client(http):
    return openai.AsyncOpenAI(
        api_key="unused", base_url="http://test/v1", http_client=http, max_retries=0
    )


@pytest.fixture
def say(engine, tokenizer):
    """Makes the fake model say a text from now on, and end."""

    def say(text: str) -> None:
        eos = engine.core.capabilities.eos_token_ids[0]
        engine.runner.script = [*tokenizer.encode(text), eos]

    return say
