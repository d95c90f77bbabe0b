"""The page in a real browser, over a fake engine whose steps the tests hold."""

import asyncio
import json
import re
from dataclasses import replace

import httpx
import pytest
import pytest_asyncio

from deployments.replicas.failover import EngineLost
from deployments.settings import SecuritySettings
from qwen3_a8w8.engine.request import TokenEvent
from tests.support.browser import chromium, needs_chromium, open_page
from tests.support.fake_deployment import text_capabilities
from tests.support.held_engine import HeldEngine
from tests.support.http_application import build_application
from tests.support.listening import listening

# One browser for all tests, so one loop.
pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="module")]

KEY = "sk-page-0123456789abcdef"
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser():
    async with chromium() as running:
        yield running


@pytest.fixture
def say(engine, tokenizer):
    """Makes the fake model say a text from now on, and end."""

    def say(text):
        eos = engine.core.capabilities.eos_token_ids[0]
        engine.runner.script = [*tokenizer.encode(text), eos]

    return say


@pytest_asyncio.fixture(loop_scope="module")
async def engine(model_directory):
    engine = HeldEngine(text_capabilities(model_directory, max_model_len=2048, num_kv_blocks=1025))
    yield engine
    await engine.close()
    assert engine.core.num_active_sequences == 0


@pytest_asyncio.fixture(loop_scope="module")
async def url(engine, model_directory):
    async with listening(build_application(model_directory, engine)) as url:
        yield url


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser, url):
    async with open_page(browser, url) as page:
        yield page


async def send(page, text):
    await page.fill("#prompt", text)
    await page.press("#prompt", "Enter")


async def is_done(page):
    """Waits until no answer is being written."""
    await page.wait_for_selector("#send:visible")


def answer(page):
    """The last answer."""
    return page.locator(".message.assistant").last


def num_tokens(tokenizer, text):
    return len(tokenizer.encode(text))


async def wait_for_text(page, selector, text):
    await page.locator(selector, has_text=text).last.wait_for()


async def test_answer_is_shown_while_it_is_written_and_is_still_there_after_a_reload(
    page, engine, say, tokenizer
):
    say("<think>\nhm\n</think>\n\nThe **fox** sleeps.")
    start = num_tokens(tokenizer, "<think>\nhm\n</think>\n\nThe **fox**")
    await send(page, "Is it awake?")
    engine.allow(start + 1)
    await answer(page).locator("strong", has_text="fox").wait_for()
    assert "sleeps" not in await answer(page).inner_text()
    assert await page.locator("#stop").is_visible()
    engine.open()
    await is_done(page)
    await wait_for_text(page, ".content", "The fox sleeps.")
    for _ in range(2):
        thinking = answer(page).locator("details.thinking")
        assert await thinking.get_attribute("open") is None
        await thinking.locator("summary").click()
        await thinking.get_by_text("hm").wait_for()
        stats = await answer(page).locator(".stats").inner_text()
        num_output = engine.core.stats().requests.num_generated_tokens
        assert stats.startswith(f"{num_output} tokens · ")
        assert await page.locator(".message.user .text").inner_text() == "Is it awake?"
        await page.reload()
        await wait_for_text(page, ".content", "The fox sleeps.")


async def test_escape_stops_the_answer_and_frees_the_engine(page, engine, say):
    say("on and on " * 100)
    await send(page, "Go on for ever.")
    engine.allow(8)
    await answer(page).locator(".stats", has_text="token").wait_for()
    assert engine.core.num_active_sequences == 1
    await page.keyboard.press("Escape")
    await is_done(page)
    assert "stopped" in await answer(page).locator(".stats").inner_text()
    async with asyncio.timeout(60):
        while engine.core.num_active_sequences:
            await asyncio.sleep(0.01)
    assert engine.core.stats().num_finished == {"abort": 1}


async def test_error_in_the_middle_is_shown_with_what_had_come_and_retry_works(page, engine, say):
    say("The fox sleeps.")
    await send(page, "Is it awake?")
    engine.allow(4)
    await answer(page).locator(".stats", has_text="token").wait_for()
    before = await answer(page).locator(".content").inner_text()
    seq_id = engine.core.activity().running[0].seq_id
    engine.runner.poison = {engine.core.sequence(seq_id).sampling.seed: 0}
    engine.open()
    error = answer(page).locator(".error")
    await error.wait_for()
    await is_done(page)
    assert "computed" in await error.inner_text()
    assert (await answer(page).locator(".content").inner_text()).startswith(before)
    engine.runner.poison = {}
    await answer(page).get_by_role("button", name="Retry").click()
    await wait_for_text(page, ".content", "The fox sleeps.")
    await is_done(page)
    assert await page.locator(".message.assistant").count() == 1
    assert not await error.is_visible()


async def test_refusal_is_shown_as_the_server_words_it(page, url):
    text = "fox " * 3000
    await send(page, text)
    error = answer(page).locator(".error")
    await error.wait_for()
    body = {"messages": [{"role": "user", "content": text.strip()}]}
    async with httpx.AsyncClient(base_url=url) as http:
        refusal = await http.post("/v1/chat/completions", json=body)
    assert refusal.status_code == 400
    assert await error.inner_text() == refusal.json()["error"]["message"]


async def test_edited_message_replaces_what_came_after_it(page, engine, say):
    engine.open()
    say("one")
    await send(page, "first")
    await is_done(page)
    say("two")
    await send(page, "second")
    await is_done(page)
    user = page.locator(".message.user").first
    await user.hover()
    await user.get_by_role("button", name="Edit").click()
    say("three")
    await user.locator("textarea").fill("other")
    async with page.expect_request("**/v1/chat/completions") as sent:
        await user.locator("textarea").press("Enter")
    await wait_for_text(page, ".content", "three")
    messages = json.loads((await sent.value).post_data)["messages"]
    assert messages == [{"role": "user", "content": "other"}]
    await is_done(page)
    assert await page.locator(".message").count() == 2
    # The keyboard's way to the same: up in an empty field.
    await page.press("#prompt", "ArrowUp")
    assert await page.locator(".message.user textarea").input_value() == "other"


async def test_settings_are_sent_kept_and_checked(page, engine, say):
    engine.open()
    say("one")
    await page.click("#toggle-settings")
    await page.fill("#system", "Be short.")
    for name, value in (("temperature", "0.5"), ("top_k", "7"), ("max_tokens", "9"), ("seed", "3")):
        await page.fill(f"[name={name}]", value)
    await page.uncheck("[name=thinking]")
    await page.fill("#tools", "[{")
    await page.locator("#tools-error").wait_for()
    await send(page, "hi")
    await wait_for_text(page, "#notice", "Tools:")
    assert await page.locator(".message").count() == 0
    await page.fill("#tools", json.dumps(TOOLS))
    await page.reload()
    async with page.expect_request("**/v1/chat/completions") as sent:
        await send(page, "hi")
    body = json.loads((await sent.value).post_data)
    assert body == {
        "model": "tiny",
        "messages": [
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": "hi"},
        ],
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "chat_template_kwargs": {"enable_thinking": False},
        "temperature": 0.5,
        "top_k": 7,
        "max_tokens": 9,
        "seed": 3,
        "tools": TOOLS,
    }
    await is_done(page)


async def test_tool_call_is_shown_and_its_result_is_sent(page, engine, say):
    engine.open()
    await page.click("#toggle-settings")
    await page.fill("#tools", json.dumps(TOOLS))
    say('<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>')
    await send(page, "How is it in Oslo?")
    await is_done(page)
    call = answer(page).locator(".call")
    assert await call.locator(".call-name").inner_text() == "weather"
    assert json.loads(await call.locator("pre").inner_text()) == {"city": "Oslo"}
    await call.locator("textarea").fill("rain")
    say("It rains.")
    async with page.expect_request("**/v1/chat/completions") as sent:
        await page.get_by_role("button", name="Send results").click()
    await wait_for_text(page, ".content", "It rains.")
    _, asked, result = json.loads((await sent.value).post_data)["messages"]
    (sent_call,) = asked["tool_calls"]
    assert json.loads(sent_call["function"]["arguments"]) == {"city": "Oslo"}
    assert result == {"role": "tool", "tool_call_id": sent_call["id"], "content": "rain"}
    await is_done(page)
    assert await page.locator(".send-results").count() == 0


async def test_cleared_conversation_can_be_had_back(page, engine, say):
    engine.open()
    say("one")
    await send(page, "first")
    await is_done(page)
    await page.click("#clear")
    assert await page.locator(".message").count() == 0
    await page.get_by_role("button", name="Undo").click()
    assert await page.locator(".message").count() == 2
    await page.click("#clear")
    await page.reload()
    await page.wait_for_selector("#send:visible")
    assert await page.locator(".message").count() == 0


async def test_key_is_asked_for_kept_in_the_tab_only_and_sent(
    browser, engine, say, model_directory, tmp_path
):
    (tmp_path / "keys").write_text(KEY)
    security = SecuritySettings(api_key_file=str(tmp_path / "keys"))
    engine.open()
    say("one")
    async with (
        listening(build_application(model_directory, engine, security)) as url,
        open_page(browser, url) as page,
    ):
        dialog = page.locator("#key-dialog")
        await dialog.wait_for()
        await dialog.locator("input").fill("sk-wrong")
        await dialog.locator("input").press("Enter")
        await dialog.locator(".field-error", has_text="API key").wait_for()
        await dialog.locator("input").fill(KEY)
        await dialog.locator("input").press("Enter")
        await wait_for_text(page, "#model-name", "tiny")
        await send(page, "first")
        await wait_for_text(page, ".content", "one")
        await page.reload()
        await wait_for_text(page, "#model-name", "tiny")
        stored = await page.evaluate(
            "[JSON.stringify(localStorage), JSON.stringify(sessionStorage)]"
        )
        assert KEY not in stored[0]
        assert KEY in stored[1]
        assert KEY not in page.url
        # Another tab doesn't have it.
        other = await page.context.new_page()
        await other.goto(url)
        await other.locator("#key-dialog").wait_for()


async def test_engine_view_shows_rows_and_asks_only_while_it_is_open(page, engine, say):
    num_asked = 0

    def count(request):
        nonlocal num_asked
        num_asked += request.url.endswith("/engine/state")

    page.on("request", count)
    await page.clock.install()
    say("on and on " * 100)
    await send(page, "Go on for ever.")
    engine.allow(10)
    await answer(page).locator(".stats", has_text="token").wait_for()
    await page.clock.run_for(10_000)
    assert num_asked == 0
    await page.click("#toggle-engine")
    (running,) = engine.core.activity().running
    context = f"{running.num_prompt_tokens} + {running.num_output_tokens}"
    await wait_for_text(page, ".rows li.decode", context)
    assert await page.locator(".rows li").count() == 16
    assert await page.locator(".rows li.idle").count() == 15
    async with page.expect_response("**/engine/state"):
        await page.clock.run_for(2000)
    await page.click("#toggle-engine")
    num_before = num_asked
    await page.clock.run_for(60_000)
    assert num_asked == num_before
    await page.click("#stop")


async def test_engine_view_tells_of_a_lost_replica_and_its_failovers(page, engine):
    await page.click("#toggle-engine")
    await page.locator(".replica", has_text="fake#1").wait_for()
    first = engine.activities

    async def another(timeout_s):
        return [replace(one, replica_id="fake#2") for one in await first(timeout_s)]

    engine.activities = another
    with engine.failovers.watching() as see:
        see(TokenEvent(0, (1, 2)))
        see(EngineLost("the actor is gone"))
        see(TokenEvent(0, (3,)))
    await page.locator(".replica.lost", has_text="fake#1").wait_for()
    await page.locator(".replica:not(.lost)", has_text="fake#2").wait_for()
    text = await page.locator("#failovers li").inner_text()
    assert re.search(r"1 stream lost the engine, resumed after [\d.]+ ms", text)
    assert "the actor is gone" in text


WIDE = (
    "| "
    + " | ".join("column" for _ in range(30))
    + " |\n"
    + "|---" * 30
    + "|\n\n```\n"
    + "x" * 400
    + "\n```"
)


@pytest.mark.parametrize("width", [320, 390, 768, 1440])
async def test_nothing_is_wider_than_the_window(browser, url, engine, say, width):
    engine.open()
    say(WIDE)
    async with open_page(browser, url, viewport={"width": width, "height": 700}) as page:
        await send(page, "y" * 300)
        await is_done(page)
        for panel in ("engine", "settings"):
            sizes = await page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
            assert sizes[0] <= sizes[1]
            await page.click(f"#toggle-{panel}")
            assert await page.locator(f"#{panel}").is_visible()
            assert await page.evaluate(f"document.getElementById('{panel}').scrollWidth") <= width
            await page.keyboard.press("Escape")
            assert not await page.locator(f"#{panel}").is_visible()


async def test_colours_follow_the_system_until_they_are_chosen(browser, url):
    colour = "getComputedStyle(document.body).backgroundColor"
    async with open_page(browser, url, color_scheme="dark") as page:
        assert await page.evaluate(colour) == "rgb(20, 21, 26)"
        await page.click("#theme")
        assert await page.evaluate(colour) == "rgb(255, 255, 255)"
        await page.reload()
        assert await page.evaluate(colour) == "rgb(255, 255, 255)"


async def test_page_can_be_used_by_keyboard_alone(page, engine, say):
    engine.open()
    say("one")
    await page.keyboard.type("first")  # the field has the focus
    await page.keyboard.press("Enter")
    await wait_for_text(page, ".content", "one")
    await is_done(page)
    reached = set()
    for _ in range(40):
        await page.keyboard.press("Tab")
        reached.add(await page.evaluate("document.activeElement.textContent.trim()"))
    assert {"New chat", "Settings", "Engine", "Edit", "Copy", "Retry", "Send"} <= reached
