"""One server with the demo model for all clients, as a user starts it."""

import os
import subprocess
import sys
from dataclasses import dataclass

import pytest

from deployments.local.ports import free_port
from tests.clients.environments import ROOT


@dataclass(frozen=True)
class DemoServer:
    url: str

    @property
    def environment(self) -> dict[str, str]:
        """For a client's process."""
        return {
            **os.environ,
            "BASE_URL": f"{self.url}/v1",
            "OPENAI_BASE_URL": f"{self.url}/v1",
            "OPENAI_API_BASE": f"{self.url}/v1",
            "OPENAI_API_KEY": "unused",
            "MODEL": "demo",
        }


@pytest.fixture(scope="package")
def server():
    """`qwen3-a8w8 serve --model demo`; it says itself when it is ready.

    It ends with this package's tests: others look for the processes of their own server.
    """
    port = free_port()
    code = "from qwen3_a8w8.cli.main import main; main()"
    command = [sys.executable, "-c", code, "serve", "--model", "demo", "--port", str(port)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            assert line.startswith("Serving at "), line
            yield DemoServer(f"http://127.0.0.1:{port}")
        finally:
            process.terminate()


@pytest.fixture
def may_make(request):
    """Whether environments that aren't there are made."""
    return request.config.getoption("--make-clients")
