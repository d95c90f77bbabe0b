"""The typical loop of each client, against the demo model: protocol facts, not meaning.

Each script in `loops/` runs in its client's environment and prints the names of its steps as it
has passed them.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.clients.environments import npm_environment, python_environment

pytestmark = pytest.mark.clients

LOOPS = Path(__file__).parent / "loops"
TIMEOUT_S = 600.0
CHAT_STEPS = ["stream", "tools", "structured", "history"]

PYTHON_CLIENTS = {
    "openai": [],  # of the tests themselves
    "openai-agents": ["openai-agents"],
    "anthropic": ["anthropic"],
    "ollama": ["ollama"],
    "instructor": ["instructor"],
    "pydantic-ai": ["pydantic-ai-slim[openai]"],
    "langchain-openai": ["langchain-openai"],
    "litellm": ["litellm"],
    "llama-index": ["llama-index-llms-openai-like"],
}
NPM_CLIENTS = {
    "openai-js": ["openai", "zod"],
    "vercel-ai": ["ai", "@ai-sdk/openai-compatible", "zod"],
}


def run(command, server):
    done = subprocess.run(
        [str(word) for word in command],
        env=server.environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("name", PYTHON_CLIENTS)
def test_python_client(name, request, may_make):
    python = python_environment(name, PYTHON_CLIENTS[name], may_make=may_make or name == "openai")
    server = request.getfixturevalue("server")  # only now: most often the test has been skipped
    script = LOOPS / f"{name.replace('-', '_')}_loop.py"
    assert run([*python, script], server) == CHAT_STEPS


@pytest.mark.parametrize("name", NPM_CLIENTS)
def test_npm_client(name, request, may_make):
    directory = npm_environment(name, NPM_CLIENTS[name], may_make=may_make)
    server = request.getfixturevalue("server")
    # Node looks for packages from the script's own directory upwards.
    script = shutil.copy(LOOPS / f"{name.replace('-', '_')}_loop.mjs", directory)
    assert run([shutil.which("node"), script], server) == CHAT_STEPS
