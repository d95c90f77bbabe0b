"""`/engine/state` over fake engines that stand still between two steps, and the page's files."""

import asyncio
import time
from pathlib import Path

import httpx
import pytest

from deployments.http import page_routes
from deployments.replicas.failover import EngineLost
from deployments.replicas.failover_log import FailoverLog
from deployments.settings import HttpSettings, SecuritySettings
from qwen3_a8w8.engine.request import TokenEvent
from qwen3_a8w8.errors import EngineDeadError
from tests.support.fake_deployment import text_capabilities
from tests.support.held_engine import HeldEngine
from tests.support.http_application import BASE_URL, build_application, check_error, running_http

KEY = "sk-page-0123456789abcdef"


@pytest.fixture
async def held(model_directory):
    engine = HeldEngine(text_capabilities(model_directory))
    transport = httpx.ASGITransport(app=build_application(model_directory, engine))
    async with httpx.AsyncClient(transport=transport, base_url=BASE_URL) as http:
        yield engine, http
    engine.open()
    await engine.close()


async def until(is_true):
    """Lets the loop turn until it is so."""
    deadline_s = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0)


async def test_state_shows_rows_prefill_and_queue(held):
    engine, http = held
    body = {"max_tokens": 4, "ignore_eos": True, "seed": 1}
    # No prompt shares a prefix with another one, so that none waits for another's blocks.
    prompts = [list(range(5 + i, 45 + i)) for i in range(17)]
    requests = [
        asyncio.create_task(http.post("/v1/completions", json={**body, "prompt": prompt}))
        for prompt in prompts
    ]
    await until(lambda: engine.core.num_active_sequences == 17 and engine.num_held == 2)
    # Nothing is computed yet, but two chunks of 32 tokens are planned.
    (replica,) = (await http.get("/engine/state")).json()["replicas"]
    first = replica["running"][0]
    assert (first["state"], first["row"], first["seq_id"]) == ("decode", None, 0)
    assert (first["num_prompt_tokens"], first["num_output_tokens"]) == (40, 0)
    second = replica["running"][1]
    assert (second["state"], second["num_computed_tokens"], second["num_to_prefill"]) == (
        "prefill",
        24,
        40,
    )
    num_waiting = replica["waiting"]["num_sequences"]
    assert num_waiting == 17 - len(replica["running"])
    assert replica["waiting"]["num_tokens"] == 40 * num_waiting
    assert replica["blocks"] == {
        "in_use": engine.core.stats().num_blocks_in_use,
        "total": 128,
        "block_size": 4,
    }
    assert replica["steps"] == replica["seconds"] == []
    engine.open()
    assert {answer.status_code for answer in await asyncio.gather(*requests)} == {200}


async def test_state_has_the_last_steps_seconds_and_rows(held):
    engine, http = held
    body = {"prompt": "the fox", "max_tokens": 3, "ignore_eos": True, "seed": 1, "n": 2}
    request = asyncio.create_task(http.post("/v1/completions", json=body))
    await until(lambda: engine.num_held > 0)
    engine.allow(2)  # the prompts, and a decode step
    await until(lambda: len(engine.core.activity().steps) == 2)
    (replica,) = (await http.get("/engine/state")).json()["replicas"]
    prefill, decode = replica["steps"]
    num_prompt = replica["running"][0]["num_prompt_tokens"]
    assert prefill["decode_batch_size"] == 0
    assert prefill["num_prefill_tokens"] >= num_prompt
    # Two rows: one B16 step costs as much as four B1 steps here, so they take turns.
    assert (decode["decode_batch_size"], decode["num_decode_rows"]) == (1, 1)
    assert decode["device_time_s"] == 0.001
    assert [one["row"] for one in replica["running"]].count(0) == 1
    num_tokens = sum(second["num_tokens"] for second in replica["seconds"])
    num_first = sum(second["num_first"] for second in replica["seconds"])
    assert num_tokens == num_first + sum(second["num_later"] for second in replica["seconds"])
    assert num_tokens == sum(one["num_output_tokens"] for one in replica["running"])
    engine.open()
    await request


async def test_state_is_shared_by_those_who_ask_together(held):
    engine, http = held
    num_asked = 0
    ask = engine.activities

    async def counted(timeout_s):
        nonlocal num_asked
        num_asked += 1
        return await ask(timeout_s)

    engine.activities = counted
    answers = await asyncio.gather(*(http.get("/engine/state") for _ in range(20)))
    assert {answer.status_code for answer in answers} == {200}
    assert num_asked == 1


async def test_state_without_replicas_says_why_and_still_has_the_failovers(held):
    engine, http = held
    with engine.failovers.watching() as see:
        see(TokenEvent(0, (1, 2, 3)))
        see(EngineLost("the actor is gone"))

        async def nobody(timeout_s):
            raise EngineDeadError("no replica is running")

        engine.activities = nobody
        state = (await http.get("/engine/state")).json()
    assert (state["replicas"], state["error"]) == ([], "no replica is running")
    (failover,) = state["failovers"]
    assert (failover["reason"], failover["num_tokens"]) == ("the actor is gone", 3)
    assert (failover["outcome"], failover["outage_s"]) == ("waiting", None)


def test_failover_log_measures_until_the_next_tokens_or_the_end():
    now_s = 100.0
    log = FailoverLog(lambda: now_s)
    with log.watching() as see:
        see(TokenEvent(0, (1,)))
        see(EngineLost("first"))
        now_s = 101.0
        see(EngineLost("still nobody"))
        now_s = 102.5
        see(TokenEvent(0, (2,)))
        see(EngineLost("second"))
        now_s = 104.0
    with log.watching() as see:
        see(TokenEvent(0, (1,), finish_reason="stop"))
    found = [(one.reason, one.num_tokens, one.outcome, one.outage_s) for one in log.snapshot()]
    assert found == [("first", 1, "resumed", 2.5), ("second", 2, "ended", 1.5)]
    assert log.num_settled == {"resumed": 1, "ended": 1}


def keyed(tmp_path, **fields):
    path = tmp_path / "keys"
    path.write_text(f"{KEY}\n")
    return SecuritySettings(api_key_file=str(path), **fields)


async def test_page_needs_no_key_but_its_data_does(model_directory, tmp_path):
    async with running_http(model_directory, security=keyed(tmp_path)) as http:
        assert (await http.get("/")).status_code == 200
        assert (await http.get("/page/main.js")).status_code == 200
        for path in ("/engine/state", "/v1/models", "/page/other.js", "/page/../security.py"):
            check_error(await http.get(path), 401)


async def test_state_does_not_count_in_the_limits_of_a_key(model_directory, tmp_path):
    security = keyed(tmp_path, max_requests_per_minute_per_key=1)
    headers = {"Authorization": f"Bearer {KEY}"}
    async with running_http(model_directory, security=security) as http:
        for _ in range(5):
            assert (await http.get("/engine/state", headers=headers)).status_code == 200
        assert (await http.get("/v1/models", headers=headers)).status_code == 200
        check_error(await http.get("/v1/models", headers=headers), 429)


async def test_page_can_be_switched_off(model_directory, tmp_path):
    off = HttpSettings(page=False)
    async with running_http(model_directory, http=off) as http:
        check_error(await http.get("/"), 404)
        check_error(await http.get("/page/main.js"), 404)
        assert (await http.get("/engine/state")).status_code == 200
    async with running_http(model_directory, http=off, security=keyed(tmp_path)) as http:
        check_error(await http.get("/"), 401)


async def test_files_of_the_page_have_strict_headers_and_no_others_are_served(model_directory):
    async with running_http(model_directory) as http:
        files = [path for path in page_routes.DIRECTORY.iterdir() if path.is_file()]
        assert {path.suffix for path in files} == {".html", ".css", ".js"}
        for path in files:
            answer = await http.get("/" if path.name == "index.html" else f"/page/{path.name}")
            assert answer.content == path.read_bytes()
            assert answer.headers["x-content-type-options"] == "nosniff"
            policy = dict(
                part.strip().split(" ", 1)
                for part in answer.headers["content-security-policy"].split(";")
            )
            assert policy == {
                "default-src": "'none'",
                "script-src": "'self'",
                "style-src": "'self'",
                "connect-src": "'self'",
                "img-src": "'self' data:",
                "base-uri": "'none'",
                "form-action": "'none'",
                "frame-ancestors": "'none'",
            }
            again = await http.get(answer.url, headers={"If-None-Match": answer.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
        for path in ("/page/", "/page/index.html", "/page/%2e%2e/api.py", "/page/..%2fapi.py"):
            check_error(await http.get(path), 404)


async def test_page_is_answered_below_a_route_prefix(model_directory):
    engine = HeldEngine(text_capabilities(model_directory))
    app = build_application(model_directory, engine)
    transport = httpx.ASGITransport(app=app, root_path="/qwen")
    async with httpx.AsyncClient(transport=transport, base_url=BASE_URL) as http:
        index = await http.get("/qwen/")
        assert 'src="page/main.js"' in index.text
        assert (await http.get("/qwen/page/main.js")).status_code == 200
    await engine.close()


def test_files_of_the_page_are_beside_its_module():
    assert Path(page_routes.__file__).parent / "page" == page_routes.DIRECTORY
