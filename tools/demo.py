"""`make demo`: deploys cluster_configs/local.yaml on a local Ray and sends requests to it.

Streams a few completions with the `openai` client, one at a time and then sixteen at once, prints
TTFT, TPOT and the decode batch sizes, and shuts everything down.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
import yaml
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from deployments.local.haproxy import DEFAULT_HTTP_PROXY, proxy_environment
from deployments.settings import AppSettings

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "cluster_configs" / "local.yaml"
START_TIMEOUT_S = 300.0

QUESTIONS = (
    "Hello!",
    "What is the capital of France?",
    "Sort: 8, 2, 5.",
    "Spell apple.",
)

console = Console()


@dataclass(frozen=True)
class Answer:
    """Text and latencies of one stream."""

    text: str
    num_tokens: int
    ttft_s: float
    tpot_s: float


def main() -> int:
    """Runs the demo; 0 if every question was answered."""
    # So that the `finally` that stops the server also runs on SIGTERM.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options = yaml.safe_load(CONFIG.read_text())
    http, settings = options["http_options"], options["applications"][0]["args"]
    url = f"http://{http['host']}:{http['port']}"
    environment = proxy_environment(
        DEFAULT_HTTP_PROXY,
        http["host"],
        http["port"],
        max_header_bytes=AppSettings(**settings).http.max_header_bytes,
    )
    with environment as proxy, deployed(url, proxy):
        client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        name = settings["served_model_name"]
        console.rule("one at a time")
        alone = [ask(client, name, question, echo=True) for question in QUESTIONS]
        console.rule("sixteen at once")
        together = ask_together(client, name, [QUESTIONS[i % len(QUESTIONS)] for i in range(16)])
        show(alone, together, url)
        differing = [a.text for i, a in enumerate(together) if a.text != alone[i % 4].text]
        if differing:
            console.print(f"[red]answers differ between alone and together: {differing}")
    return 1 if differing or not all(a.text for a in alone) else 0


@contextlib.contextmanager
def deployed(url: str, proxy: Mapping[str, str]) -> Iterator[None]:
    """Runs the application on its own local Ray behind that proxy, as a context manager."""
    with contextlib.suppress(httpx.TransportError):
        httpx.get(f"{url}/health", timeout=1.0)
        raise SystemExit(f"another server responds at {url}; stop it and try again")
    with tempfile.NamedTemporaryFile("w+", suffix=".log", prefix="qwen3-a8w8-demo-") as log:
        command = [Path(sys.executable).with_name("serve"), "run", "--address", "local", CONFIG]
        environment = {
            **os.environ,
            "RAY_USAGE_STATS_ENABLED": "0",
            "PYTHONUNBUFFERED": "1",
            **proxy,
        }
        process = subprocess.Popen(
            [*map(str, command)], cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            wait_until_ready(process, url, Path(log.name))
            yield
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()


def wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Polls /health until it returns 200; exits if the server can't start."""
    begin = time.monotonic()
    with console.status(f"deploying {CONFIG.relative_to(ROOT)} on a local Ray"):
        while time.monotonic() - begin < START_TIMEOUT_S and process.poll() is None:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{url}/health", timeout=5.0).status_code == 200:
                    console.print(f"ready at {url} after {time.monotonic() - begin:.1f} s")
                    return
            time.sleep(0.2)
    console.print(log.read_text()[-4000:], markup=False, highlight=False)
    raise SystemExit("the server didn't start; its log is above")


def ask(client: OpenAI, model: str, question: str, *, echo: bool = False) -> Answer:
    """Streams one greedy completion."""
    begin = time.perf_counter()
    arrivals: list[float] = []
    parts: list[str] = []
    num_tokens = 0
    if echo:
        console.print(f"[bold]{question}[/bold] ", end="")
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        temperature=0,
        max_tokens=128,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"chat_template_kwargs": {"enable_thinking": False}},
    )
    for chunk in stream:
        if chunk.usage is not None:
            num_tokens = chunk.usage.completion_tokens
        for choice in chunk.choices:
            if choice.delta.content:
                arrivals.append(time.perf_counter())
                parts.append(choice.delta.content)
                if echo:
                    console.print(choice.delta.content, end="", markup=False, highlight=False)
    if echo:
        console.print()
    first, last = (arrivals[0], arrivals[-1]) if arrivals else (begin, begin)
    tpot_s = (last - first) / max(1, num_tokens - 1)
    return Answer("".join(parts), num_tokens, first - begin, tpot_s)


def ask_together(client: OpenAI, model: str, questions: list[str]) -> list[Answer]:
    """Streams all questions at the same time; returns answers in their order."""
    answers: dict[int, Answer] = {}

    def work(index: int) -> None:
        answers[index] = ask(client, model, questions[index])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(questions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(answers) < len(questions):
        raise SystemExit(f"{len(questions) - len(answers)} of {len(questions)} streams failed")
    console.print(f"{len(answers)} answers, {sum(a.num_tokens for a in answers.values())} tokens")
    return [answers[i] for i in range(len(questions))]


def show(alone: list[Answer], together: list[Answer], url: str) -> None:
    """Prints latencies measured by the client, and the server's decode batches."""
    table = Table("", "TTFT median", "TPOT median", "tokens")
    for label, answers in (("one at a time", alone), ("sixteen at once", together)):
        ttft = sorted(a.ttft_s for a in answers)[len(answers) // 2]
        tpot = sorted(a.tpot_s for a in answers)[len(answers) // 2]
        num_tokens = sum(a.num_tokens for a in answers)
        table.add_row(label, f"{ttft * 1e3:.1f} ms", f"{tpot * 1e3:.2f} ms", str(num_tokens))
    console.print(table)
    for family in text_string_to_metric_families(httpx.get(f"{url}/metrics").text):
        if family.name == "qwen3_a8w8_decode_batches":
            for sample in family.samples:
                size = sample.labels["batch_size"]
                console.print(f"decode batches of size {size}: {int(sample.value)}")


if __name__ == "__main__":
    sys.exit(main())
