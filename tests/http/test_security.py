"""Keys, limits, CORS and sizes before the routes, as clients and browsers meet them."""

import asyncio

import httpx
import openai
import pytest

from deployments.http.security import add_security
from deployments.settings import HttpSettings, SecuritySettings
from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.errors import ConfigError
from tests.support.fake_deployment import FakeEngine, text_capabilities
from tests.support.http_application import BASE_URL, build_application, check_error, running_http

KEY = "sk-first-0123456789abcdef"
OTHER_KEY = "sk-other-0123456789abcdef"
ORIGIN = "https://chat.example.com"
REQUEST = {"prompt": "the fox", "max_tokens": 4, "seed": 7, "ignore_eos": True}


@pytest.fixture
def keyed(tmp_path):
    """Makes settings with two keys."""
    path = tmp_path / "keys"
    path.write_text(f"{KEY}\n{OTHER_KEY}\n")

    def make(**fields):
        return SecuritySettings(api_key_file=str(path), **fields)

    return make


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def official_client(http, key):
    return openai.AsyncOpenAI(
        api_key=key, base_url=f"{BASE_URL}/v1", http_client=http, max_retries=0
    )


async def test_right_key_is_served_to_the_official_client(model_directory, keyed):
    async with running_http(model_directory, security=keyed()) as http:
        for key in (KEY, OTHER_KEY):
            answer = await official_client(http, key).completions.create(
                model="tiny", prompt="the fox", max_tokens=4
            )
            assert answer.choices[0].finish_reason in ("length", "stop")


async def test_wrong_key_gives_the_official_client_an_authentication_error(model_directory, keyed):
    async with running_http(model_directory, security=keyed()) as http:
        with pytest.raises(openai.AuthenticationError) as caught:
            await official_client(http, "sk-wrong").models.list()
    assert caught.value.status_code == 401
    assert caught.value.code == "invalid_api_key"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": KEY},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer "},
        {"Authorization": f"Basic {KEY}"},
        {"Authorization": f"Bearer {KEY}x"},
        {"Authorization": f"Bearer {KEY[:-1]}"},
        {"Authorization": b"Bearer \xff\xfe"},
        {"X-Api-Key": KEY},
    ],
)
async def test_missing_or_wrong_key_gives_401_in_openais_shape(model_directory, keyed, headers):
    async with running_http(model_directory, security=keyed()) as http:
        answer = await http.post("/v1/completions", json=REQUEST, headers=headers)
    error = check_error(answer, 401, "invalid_api_key")
    assert KEY not in error["message"]
    assert answer.headers["www-authenticate"] == "Bearer"


async def test_scheme_is_recognised_in_any_case(model_directory, keyed):
    async with running_http(model_directory, security=keyed()) as http:
        answer = await http.get("/v1/models", headers={"authorization": f"bearer {KEY}"})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "path",
    ["/v1/models", "/metrics", "/version", "/openapi.json", "/nothing", "/health/", "/page/"],
)
async def test_everything_but_health_needs_a_key(model_directory, keyed, path):
    async with running_http(model_directory, security=keyed()) as http:
        check_error(await http.get(path), 401)
        assert (await http.get("/health")).status_code == 200


async def test_open_path_under_a_route_prefix_is_open(model_directory, keyed):
    engine = FakeEngine(text_capabilities(model_directory))
    app = build_application(model_directory, engine, keyed())
    transport = httpx.ASGITransport(app=app, root_path="/qwen")
    async with httpx.AsyncClient(transport=transport, base_url=BASE_URL) as http:
        assert (await http.get("/qwen/health")).status_code == 200
        check_error(await http.get("/qwen/v1/models"), 401)
    await engine.close()


async def test_requests_per_minute_over_the_limit_give_429_with_retry_after(model_directory, keyed):
    security = keyed(max_requests_per_minute_per_key=2)
    async with running_http(model_directory, security=security) as http:
        for _ in range(2):
            assert (await http.get("/v1/models", headers=bearer(KEY))).status_code == 200
        answer = await http.get("/v1/models", headers=bearer(KEY))
        error = check_error(answer, 429, "rate_limit_exceeded")
        assert error["type"] == "rate_limit_error"
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        with pytest.raises(openai.RateLimitError):
            await official_client(http, KEY).models.list()
        assert (await http.get("/v1/models", headers=bearer(OTHER_KEY))).status_code == 200


async def test_concurrent_requests_over_the_limit_give_429_and_an_ended_one_frees_its_place(
    model_directory, keyed
):
    security = keyed(max_concurrent_requests_per_key=2)
    async with running_http(model_directory, security=security) as http:

        async def post():
            return await http.post("/v1/completions", json=REQUEST, headers=bearer(KEY))

        answers = await asyncio.gather(*(post() for _ in range(5)))
        assert sorted(answer.status_code for answer in answers) == [200, 200, 429, 429, 429]
        assert (await post()).status_code == 200


async def test_failed_and_refused_requests_free_their_place(model_directory, keyed):
    security = keyed(max_concurrent_requests_per_key=1)
    async with running_http(model_directory, security=security) as http:
        for body in (b"{", b'{"prompt": ""}'):
            check_error(await http.post("/v1/completions", content=body, headers=bearer(KEY)), 400)
        answer = await http.post("/v1/completions", json=REQUEST, headers=bearer(KEY))
        assert answer.status_code == 200


def test_limits_without_keys_are_refused(model_directory):
    security = SecuritySettings(max_concurrent_requests_per_key=1)
    with pytest.raises(ConfigError, match="there are no keys"):
        build_application(model_directory, FakeEngine(text_capabilities(model_directory)), security)


def test_missing_key_file_is_refused_instead_of_serving_openly(model_directory, tmp_path):
    security = SecuritySettings(api_key_file=str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="can't be read"):
        add_security(None, security, HttpSettings())


async def test_cors_is_off_by_default(model_directory):
    async with running_http(model_directory) as http:
        preflight = await http.options("/v1/completions", headers=preflight_headers(ORIGIN))
        check_error(preflight, 405)
        answer = await http.get("/v1/models", headers={"Origin": ORIGIN})
    assert "access-control-allow-origin" not in answer.headers


def preflight_headers(origin):
    return {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }


async def test_configured_origin_may_send_requests_and_needs_no_key_to_ask(model_directory, keyed):
    security = keyed(cors_allow_origins=(ORIGIN,))
    async with running_http(model_directory, security=security) as http:
        preflight = await http.options("/v1/completions", headers=preflight_headers(ORIGIN))
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == ORIGIN
        assert "POST" in preflight.headers["access-control-allow-methods"]
        assert "authorization" in preflight.headers["access-control-allow-headers"].lower()
        assert "access-control-allow-credentials" not in preflight.headers
        answer = await http.get("/v1/models", headers={**bearer(KEY), "Origin": ORIGIN})
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        # A page can read why it was refused.
        refusal = await http.get("/v1/models", headers={"Origin": ORIGIN})
        check_error(refusal, 401)
        assert refusal.headers["access-control-allow-origin"] == ORIGIN


async def test_other_origin_is_refused_in_openais_shape(model_directory):
    security = SecuritySettings(cors_allow_origins=(ORIGIN,))
    other = "https://evil.example.com"
    async with running_http(model_directory, security=security) as http:
        preflight = await http.options("/v1/completions", headers=preflight_headers(other))
        check_error(preflight, 400, "cors_not_allowed")
        assert "access-control-allow-origin" not in preflight.headers
        answer = await http.get("/v1/models", headers={"Origin": other})
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("where", ["header", "query", "path"])
async def test_long_headers_or_path_give_431(model_directory, where):
    long = "x" * 2000
    path = {"query": f"/v1/models?q={long}", "path": f"/v1/models/{long}"}.get(where, "/v1/models")
    headers = {"X-Long": long} if where == "header" else {}
    limits = HttpSettings(max_header_bytes=1024)
    async with running_http(model_directory, http=limits) as http:
        check_error(await http.get(path, headers=headers), 431, "headers_too_large")
        assert (await http.get("/v1/models")).status_code == 200


async def test_announced_long_body_gives_413_before_any_of_it_is_read(model_directory):
    read = []

    async def body():
        read.append(1)
        yield b"x"

    async with running_http(model_directory, http=HttpSettings(max_body_bytes=2000)) as http:
        for length in ("2001", "9" * 40):
            answer = await http.post(
                "/v1/completions", content=body(), headers={"Content-Length": length}
            )
            check_error(answer, 413, "request_too_large")
    assert read == []


async def test_body_that_grows_too_long_without_saying_so_gives_413(model_directory):
    async def body():
        for _ in range(30):
            yield b" " * 100

    async with running_http(model_directory, http=HttpSettings(max_body_bytes=2000)) as http:
        answer = await http.post("/v1/completions", content=body())
        check_error(answer, 413, "request_too_large")


async def test_queue_of_requests_with_a_key_still_answers_503(model_directory, keyed):
    config = EngineConfig(max_queued_requests=1)
    async with running_http(model_directory, security=keyed(), config=config) as http:
        body = {**REQUEST, "prompt": ["the fox"] * 20, "max_tokens": 40}
        answer = await http.post("/v1/completions", json=body, headers=bearer(KEY))
        check_error(answer, 503, "server_overloaded")


async def test_ollamas_paths_take_any_type_from_programs_but_not_from_pages(model_directory):
    body = b'{"model": "tiny", "messages": []}'
    form = {"Content-Type": "application/x-www-form-urlencoded"}  # what `curl -d` sends
    async with running_http(model_directory) as http:
        assert (await http.post("/api/chat", content=body, headers=form)).status_code == 200
        page = form | {"Origin": "https://a.example"}
        assert (await http.post("/api/chat", content=body, headers=page)).status_code == 415
        assert (await http.post("/v1/completions", content=body, headers=form)).status_code == 415
