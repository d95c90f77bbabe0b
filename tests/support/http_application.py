"""The whole HTTP side in this process, security included, over a fake engine."""

from contextlib import asynccontextmanager

import httpx

from deployments.http.api import build_api
from deployments.http.security import add_security
from deployments.ingress.service import ModelService
from deployments.metrics.http_metrics import HttpMetrics
from deployments.settings import HttpSettings, SecuritySettings
from qwen3_a8w8.config import EngineConfig
from tests.support.fake_deployment import FakeEngine, text_capabilities

BASE_URL = "http://test"


def build_application(directory, engine, security=None, http=None):
    """The ASGI application as the ingress builds it; `directory` has tokenizer files."""
    http = http or HttpSettings()
    service = ModelService("tiny", directory, engine, decode_batch_sizes=(1, 16))
    app = build_api(
        service,
        max_body_bytes=http.max_body_bytes,
        max_stored_responses=http.max_stored_responses,
        has_page=http.page,
    )
    add_security(app, security or SecuritySettings(), http)
    app.add_middleware(HttpMetrics, stats=service.http_stats)
    return app


@asynccontextmanager
async def running_http(directory, *, security=None, http=None, config=None):
    """A client of the application; afterwards nothing is left in the engine."""
    engine = FakeEngine(text_capabilities(directory), config or EngineConfig())
    transport = httpx.ASGITransport(app=build_application(directory, engine, security, http))
    try:
        async with httpx.AsyncClient(transport=transport, base_url=BASE_URL) as client:
            yield client
    finally:
        await engine.close()
    assert engine.core.stats().num_blocks_in_use == 0
    assert engine.core.num_active_sequences == 0


def check_error(answer, status, code=None):
    """The answer is an error of that status in OpenAI's shape; gives the error."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert list(body) == ["error"]
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert isinstance(error["type"], str)
    assert isinstance(error["param"], str | None)
    assert isinstance(error["code"], str | None)
    if code is not None:
        assert error["code"] == code
    return error
