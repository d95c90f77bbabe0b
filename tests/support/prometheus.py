"""A real Prometheus (Debian's package) that scrapes what a test runs."""

import asyncio
import contextlib
import json
import shutil

import httpx
import pytest

from deployments.local.ports import free_port

DEADLINE_S = 120
PROMETHEUS = shutil.which("prometheus")
PROMTOOL = shutil.which("promtool")

needs_prometheus = pytest.mark.skipif(
    PROMETHEUS is None or PROMTOOL is None, reason="needs Debian's package prometheus"
)


@contextlib.asynccontextmanager
async def running_prometheus(config, directory):
    """Runs it with a configuration as in its YAML; gives a client of its API.

    Paths in the configuration are absolute; the data lies in the directory.
    """
    port = free_port()
    path = directory / "prometheus.yml"
    path.write_text(json.dumps(config))  # JSON is YAML
    process = await asyncio.create_subprocess_exec(
        PROMETHEUS,
        f"--config.file={path}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}/api/v1") as client:
            yield client
    finally:
        process.terminate()
        await process.wait()


async def query(client, text, is_enough=bool):
    """The values of an instant query, once a scrape is in and there are enough of them."""
    deadline = asyncio.get_running_loop().time() + DEADLINE_S
    answer = found = None
    while asyncio.get_running_loop().time() < deadline:
        with contextlib.suppress(httpx.TransportError):  # it isn't up yet
            answer = await client.get("/query", params={"query": text})
            assert answer.status_code in (200, 503), f"{text}: {answer.text}"
            # While it starts it answers with 503; a scrape that failed leaves no result.
            if answer.status_code == 200:
                found = [float(one["value"][1]) for one in answer.json()["data"]["result"]]
                if is_enough(found):
                    return found
        await asyncio.sleep(0.2)
    raise AssertionError(f"not within {DEADLINE_S} s: {text}; last {found}, {answer}")
