"""The page while the replica that writes its answer is killed."""

import asyncio
import os
import signal

import pytest

from tests.support.browser import chromium, needs_chromium, open_page

pytestmark = [pytest.mark.serve, pytest.mark.chaos, needs_chromium]

SEED = 11
NUM_TOKENS = 60


async def test_answer_goes_on_on_another_replica_and_the_view_says_so(application):
    chat = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Go on."}],
        "seed": SEED,
        "max_tokens": NUM_TOKENS,
    }
    with application.client() as client:
        undisturbed = client.chat.completions.create(**chat).choices[0].message
    assert undisturbed.content
    async with chromium() as browser, open_page(browser, application.url) as page:
        await page.click("#toggle-settings")
        await page.fill("[name=seed]", str(SEED))
        await page.fill("[name=max_tokens]", str(NUM_TOKENS))
        await page.click("#toggle-engine")
        await page.locator(".replica").nth(1).wait_for()
        # Other tests have killed engines of this application before; the newest comes first.
        num_before = await page.locator("#failovers li").count()
        with application.gate.closed(8):
            await page.fill("#prompt", "Go on.")
            await page.press("#prompt", "Enter")
            await page.locator(".rows li.decode").wait_for()
            busy = await asyncio.to_thread(busy_replica, application)
            os.kill(busy.actor_pid, signal.SIGKILL)
            await page.locator("#failovers li").nth(num_before).wait_for()
            application.gate.open()
            await page.wait_for_selector("#send:visible")
        await page.locator("#failovers li:first-child", has_text="resumed after").wait_for()
        await page.locator(".replica.lost", has_text=busy.replica_id[:12]).wait_for()
        (_, message) = await page.evaluate(
            "JSON.parse(localStorage.getItem('qwen3-a8w8.conversation'))"
        )
    assert message["content"] == undisturbed.content
    assert "error" not in message
    await asyncio.to_thread(application.wait_until_idle)


def busy_replica(application):
    application.wait_for_sequences(1)
    return max(application.reports(), key=lambda report: report.stats.num_running)
