"""Clients that are commands: an evaluation harness and an editor's agent."""

import json
import re
import subprocess

import pytest

from qwen3_a8w8.checkpoint.resolve import resolve_model
from tests.clients.environments import python_environment
from tests.clients.test_clients import TIMEOUT_S

pytestmark = pytest.mark.clients

QUESTIONS = ["Is it?", "Was it?", "Will it be?"]
TASK = {
    "task": "tiny",
    "dataset_path": "json",
    "test_split": "test",
    "doc_to_text": "{{question}}",
    "doc_to_target": " yes",
}
CHOICES = {
    "output_type": "multiple_choice",
    "doc_to_choice": [" yes", " no"],
    "doc_to_target": 0,
    "metric_list": [{"metric": "acc"}],
}
GENERATED = {
    "output_type": "generate_until",
    "generation_kwargs": {"until": ["\n\n"], "max_gen_toks": 16, "temperature": 0.0},
    "metric_list": [{"metric": "exact_match"}],
}


LOCAL = {"tokenizer": resolve_model("demo"), "tokenizer_backend": "huggingface"}


@pytest.mark.parametrize(
    ("model", "route", "task", "tokenizer"),
    [
        ("local-completions", "completions", CHOICES, {"tokenizer_backend": "remote"}),
        ("local-completions", "completions", CHOICES, LOCAL),
        ("local-chat-completions", "chat/completions", GENERATED, LOCAL),
    ],
)
def test_lm_eval(model, route, task, tokenizer, request, may_make, tmp_path):
    python = python_environment("lm-eval", ["lm-eval[api]"], may_make=may_make)
    server = request.getfixturevalue("server")
    data = tmp_path / "test.jsonl"
    data.write_text("".join(json.dumps({"question": text}) + "\n" for text in QUESTIONS))
    content = {**TASK, **task, "dataset_kwargs": {"data_files": {"test": str(data)}}}
    (tmp_path / "tiny.yaml").write_text(json.dumps(content))  # JSON is YAML
    arguments = {
        "model": "demo",
        "base_url": f"{server.url}/v1/{route}",
        **tokenizer,
    }
    command = [*python, "-m", "lm_eval", "--model", model, "--tasks", "tiny", "--log_samples"]
    command += ["--include_path", str(tmp_path), "--output_path", str(tmp_path / "out")]
    command += ["--model_args", ",".join(f"{name}={value}" for name, value in arguments.items())]
    if "chat" in route:
        command.append("--apply_chat_template")
    environment = {**server.environment, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    (samples,) = (tmp_path / "out").rglob("samples_tiny_*.jsonl")
    found = [json.loads(line) for line in samples.read_text().splitlines()]
    assert sorted(sample["doc"]["question"] for sample in found) == sorted(QUESTIONS)
    for sample in found:
        if task is CHOICES:  # two log-probabilities, and whether each is what greedy would give
            values = [float(response[0][0]) for response in sample["resps"]]
            assert len(values) == 2
            assert all(value < 0.0 for value in values)
        else:
            assert isinstance(sample["resps"][0][0], str)


def test_aider(request, may_make, tmp_path):
    python = python_environment("aider", ["aider-chat"], may_make=may_make)
    server = request.getfixturevalue("server")
    prices = tmp_path / ".aider" / "caches" / "model_prices_and_context_window.json"
    prices.parent.mkdir(parents=True)
    prices.write_text(json.dumps({"openai/demo": {"max_input_tokens": 1024}}))  # or it fetches them
    (tmp_path / "hello.py").write_text("print('hello')\n")
    command = [*python, "-m", "aider", "--model", "openai/demo", "--message", "Say hello."]
    command += ["--no-git", "--yes-always", "--no-check-update", "--analytics-disable"]
    command += ["--no-show-model-warnings", "--no-show-release-notes", "--no-detect-urls"]
    command += ["--edit-format", "ask", "--map-tokens", "0", "hello.py"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**server.environment, "HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # It counts by the usage that the stream reports.
    counted = re.search(r"Tokens: (\d+) sent, (\d+) received", done.stdout)
    assert counted, done.stdout
    assert min(map(int, counted.groups())) > 0
    assert "error" not in done.stdout.lower(), done.stdout
