"""Requests made from the application's own OpenAPI schema, right and wrong ones: never a 5xx."""

import asyncio
import json
import warnings

import pytest
from hypothesis import HealthCheck, Phase, given, settings

with warnings.catch_warnings():
    # What its dependencies have deprecated.
    warnings.simplefilter("ignore")
    import schemathesis
    from schemathesis import GenerationMode
    from schemathesis.core import NOT_SET

from deployments.settings import SecuritySettings
from qwen3_a8w8.config import EngineConfig
from tests.support.fake_deployment import FakeEngine, text_capabilities
from tests.support.http_application import build_application, check_error, running_http

NUM_EXAMPLES = 30
STATUSES = {200, 400, 404, 405, 413, 415}


@pytest.fixture(scope="module")
def openapi(model_directory):
    engine = FakeEngine(text_capabilities(model_directory))
    return build_application(model_directory, engine).openapi()


async def send(directory, cases):
    """Sends each case and checks its answer; the server serves a plain request afterwards."""
    # A queue that holds whatever one request may ask for, so that 503 is no answer here.
    config = EngineConfig(max_queued_requests=100_000)
    async with running_http(directory, security=SecuritySettings(), config=config) as http:
        for case in cases:
            check(await http.request(**as_request(case)))
        check(await http.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}), {200})


def as_request(case):
    request = {
        "method": case.method,
        "url": case.formatted_path,
        "params": case.query,
        "headers": {
            name: value.encode("latin-1", "ignore") for name, value in (case.headers or {}).items()
        },
    }
    if case.body is not NOT_SET:
        body = case.body
        request["content"] = body if isinstance(body, bytes) else json.dumps(body)
        request["headers"].setdefault("Content-Type", case.media_type or "application/json")
    return request


def check(answer, statuses=frozenset(STATUSES)):
    assert answer.status_code in statuses, answer.text
    path, media_type = answer.request.url.path, answer.headers["content-type"]
    if answer.status_code >= 400 and path.startswith("/v1/messages"):
        body = answer.json()
        assert body["type"] == "error"
        assert set(body["error"]) == {"type", "message"}
    elif answer.status_code >= 400 and path.startswith("/api/"):
        assert isinstance(answer.json()["error"], str)
    elif answer.status_code >= 400:
        check_error(answer, answer.status_code)
    elif media_type.startswith("text/event-stream"):
        frames = answer.text.strip().split("\n\n")
        ends = {"data: [DONE]", 'event: message_stop\ndata: {"type":"message_stop"}'}
        assert frames[-1] in ends
        assert not any('"error"' in frame for frame in frames)
    elif media_type == "application/x-ndjson":
        chunks = [json.loads(line) for line in answer.text.splitlines()]
        assert [chunk["done"] for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


def test_schema_has_the_body_of_every_post_route_and_no_422(openapi):
    for path, operations in openapi["paths"].items():
        for method, operation in operations.items():
            assert "422" not in operation["responses"], path
            if method == "post" and not path.endswith("/cancel"):  # which has no body
                content = operation["requestBody"]["content"]["application/json"]
                name = content["schema"]["$ref"].rpartition("/")[2]
                assert openapi["components"]["schemas"][name]["type"] == "object"


def make_cases(operation, mode):
    """The same examples in every run."""
    cases = []

    @settings(
        max_examples=NUM_EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def collect(case):
        cases.append(case)

    collect()
    return cases


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_request_from_the_schema_never_gives_a_server_error(openapi, model_directory, mode):
    schema = schemathesis.openapi.from_dict(openapi)
    for result in schema.get_all_operations():
        operation = result.ok()
        if mode is GenerationMode.NEGATIVE and not operation.body:
            continue  # any path is right
        asyncio.run(send(model_directory, make_cases(operation, mode)))
