"""The Codex CLI from its npm package, and a server whose engine speaks from a prepared transcript.

The demo model can't edit code. So the engine behind the real HTTP side says what a test has
prepared; everything between the socket and the token ids is the server's own.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import uvicorn

from qwen3_a8w8.checkpoint.resolve import resolve_model
from qwen3_a8w8.text.tokenizer import Tokenizer
from tests.support.fake_deployment import FakeEngine, text_capabilities
from tests.support.fakes import FakeRunner
from tests.support.http_application import build_application

CODEX = "@openai/codex@0.171.0"
CACHE = Path(__file__).parents[2] / ".cache" / "clients"
INSTALL_TIMEOUT_S = 600
RUN_TIMEOUT_S = 240


def codex_binary() -> str:
    """Path of the CLI; installed on first use, outside what is committed.

    Skips the test where npm or the package can't be had.
    """
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("the Codex CLI needs node and npm")
    directory = CACHE / CODEX.replace("/", "-")
    binary = directory / "node_modules" / ".bin" / "codex"
    if not binary.exists():
        directory.mkdir(parents=True, exist_ok=True)
        command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(directory), CODEX]
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S)
        if done.returncode != 0:
            pytest.skip(f"npm can't install {CODEX}: {done.stderr.strip()[-200:]}")
    return str(binary)


class TranscriptRunner(FakeRunner):
    """Says turn `k` of a transcript where the prompt has the outputs of `k` calls.

    Attributes:
        prompts: text of each prompt, in order.
    """

    def __init__(self, capabilities, tokenizer: Tokenizer, turns: Sequence[str]) -> None:
        super().__init__(capabilities)
        self.prompts: list[str] = []
        self._tokenizer = tokenizer
        eos = capabilities.eos_token_ids[0]
        self._turns = [[*tokenizer.encode(turn), eos] for turn in turns]
        self._scripts: dict[int, list[int]] = {}

    def execute(self, plan):
        """Runs a step; a sequence's turn is chosen when it starts."""
        for start in plan.start:
            ids = list(start.prompt_token_ids)
            prompt = self._tokenizer.decode(ids, skip_special_tokens=False)
            self.prompts.append(prompt)
            num_outputs = prompt.count("<tool_response>\n")
            self._scripts[start.seq_id] = self._turns[min(num_outputs, len(self._turns) - 1)]
        return super().execute(plan)

    def _sample(self, seq_id, known):
        self.script = self._scripts[seq_id]
        return super()._sample(seq_id, known)


@contextlib.contextmanager
def transcript_server(turns: Sequence[str]) -> Iterator[tuple[str, TranscriptRunner]]:
    """A server on a free port of this machine; gives its URL with `/v1`, and the runner."""
    directory = resolve_model("demo")
    sizes = {"max_model_len": 40960, "num_kv_blocks": 1025, "block_size": 128}
    capabilities = text_capabilities(directory, **sizes, prefill_chunk_tokens=4096)
    engine = FakeEngine(capabilities)
    engine.runner = TranscriptRunner(capabilities, Tokenizer.from_directory(directory), turns)
    app = build_application(directory, engine)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1", engine.runner
        finally:
            server.should_exit = True
            thread.join()
    assert engine.core.num_active_sequences == 0


def run_codex(base_url: str, home: Path, project: Path, task: str) -> list[dict]:
    """Runs `codex exec` on a task to its end; gives its events."""
    home.mkdir()
    catalog = home / "models.json"
    catalog.write_text(json.dumps({"models": [_MODEL]}), encoding="utf-8")
    (home / "config.toml").write_text(
        f"""model = "tiny"
model_provider = "local"
model_catalog_json = "{catalog}"
[model_providers.local]
name = "local"
base_url = "{base_url}"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
""",
        encoding="utf-8",
    )
    command = [codex_binary(), "exec", "--json", "--skip-git-repo-check"]
    command += ["--dangerously-bypass-approvals-and-sandbox", "-C", str(project), task]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        env={**os.environ, "CODEX_HOME": str(home), "NO_PROXY": "127.0.0.1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


_MODEL = {
    "slug": "tiny",
    "display_name": "tiny",
    "description": None,
    "supported_reasoning_levels": [],
    "shell_type": "shell_command",
    "visibility": "list",
    "supported_in_api": True,
    "priority": 1,
    "availability_nux": None,
    "upgrade": None,
    "base_instructions": "You edit code.",
    "model_messages": None,
    "supports_reasoning_summaries": False,
    "support_verbosity": False,
    "default_verbosity": None,
    "apply_patch_tool_type": "freeform",
    "truncation_policy": {"mode": "bytes", "limit": 10000},
    "supports_parallel_tool_calls": True,
    "context_window": 40000,
    "experimental_supported_tools": [],
    "input_modalities": ["text"],
}
"""What Codex knows of a model; without it, it doesn't offer its patch tool."""
