"""A headless Chromium, and the page in it."""

import contextlib
import shutil

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="needs Chromium (on Debian: apt-get install chromium)"
)


@contextlib.asynccontextmanager
async def chromium():
    """The browser; the library's own isn't downloaded."""
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM,
            # Containers run tests as root, where Chromium's sandbox can't be set up.
            args=["--no-sandbox", "--disable-dev-shm-usage"],
        )
        try:
            yield browser
        finally:
            await browser.close()


@contextlib.asynccontextmanager
async def open_page(browser, url, **options):
    """The page in a fresh profile; nothing may go wrong, or be asked of another server."""
    context = await browser.new_context(**options)
    page = await context.new_page()
    page.set_default_timeout(60_000)
    problems, urls = [], []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if is_problem(message) else 0)
    page.on("request", lambda request: urls.append(request.url))
    try:
        await page.goto(url)
        yield page
    finally:
        await context.close()
    assert problems == []
    assert [other for other in urls if not other.startswith((url, "data:"))] == []


def is_problem(message):
    """What the browser complains about, failed requests left out: tests make them fail."""
    return message.type in ("error", "warning") and "Failed to load resource" not in message.text
