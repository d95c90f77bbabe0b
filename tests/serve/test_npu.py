"""The application on an emulated NPU: Ray, HTTP, a true batch of 16; machines that lack one."""

import contextlib
import json
import subprocess
import sys
import threading
import urllib.request

import pytest

from deployments.local.ports import free_port
from tests.support.npu_emulation import ROOT, environment, run_python

pytestmark = [pytest.mark.serve, pytest.mark.npu_contract, pytest.mark.slow]

CLI = ("-c", "from qwen3_a8w8.cli.main import main; main()")
SMALL = ("--model", "demo", "--device", "npu", "--max-model-len", "256", "--num-kv-blocks", "200")
DEADLINE_S = 300


@contextlib.contextmanager
def serving(*more, options=""):
    """`qwen3-a8w8 serve --device npu`; it says itself when it is ready."""
    port = free_port()
    command = [sys.executable, *CLI, "serve", *SMALL, "--port", str(port), *more]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment(options), stdout=subprocess.PIPE, text=True
    ) as process:
        hanging = threading.Timer(DEADLINE_S, process.kill)
        hanging.start()
        try:
            line = process.stdout.readline()
            assert line.startswith("Serving at "), line
            yield f"http://127.0.0.1:{port}"
        finally:
            hanging.cancel()
            process.terminate()


@pytest.fixture(scope="module")
def url():
    with serving() as url:
        yield url


def ask(url, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
        return json.load(response)


def test_a_batch_of_16_over_http_gives_each_prompts_own_answer(url):
    prompts = [f"The number after {i} is" for i in range(16)]
    settings = {"model": "demo", "max_tokens": 5, "temperature": 0.7, "seed": 11}
    batch = ask(url, "/v1/batch_generate", {**settings, "prompts": prompts})
    texts = [choice["text"] for choice in batch["choices"]]
    assert len(set(texts)) > 1
    for index in (0, 9, 15):
        alone = ask(url, "/v1/completions", {**settings, "prompt": prompts[index]})
        assert alone["choices"][0]["text"] == texts[index]


def test_stream_whose_device_is_lost_goes_on_with_its_bits_elsewhere(tmp_path):
    fault = tmp_path / "fault"
    settings = {"model": "demo", "max_tokens": 40, "seed": 11, "ignore_eos": True}
    body = {**settings, "prompt": "The fox", "logprobs": 1, "return_token_ids": True}
    with serving("--num-replicas", "2", options=f"lost_by={fault}") as url:
        undisturbed = ask(url, "/v1/completions", body)["choices"][0]
        data = json.dumps(body | {"stream": True}).encode()
        request = urllib.request.Request(
            url + "/v1/completions", data, {"Content-Type": "application/json"}
        )
        choices = []
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
            for line in response:
                if line.startswith(b"data: {"):
                    choices.append(json.loads(line[6:])["choices"][0])
                if len(choices) == 1:
                    fault.touch()
        assert not fault.exists()  # the only engine that computed has lost its device
        assert "".join(choice["text"] for choice in choices) == undisturbed["text"]
        ids = [token_id for choice in choices for token_id in choice["token_ids"]]
        assert ids == undisturbed["token_ids"]
        logprobs = [v for choice in choices for v in choice["logprobs"]["token_logprobs"]]
        assert logprobs == undisturbed["logprobs"]["token_logprobs"]
        assert ask(url, "/v1/completions", body)["choices"][0] == undisturbed


def test_version_shows_the_device_and_what_it_promises(url):
    device = ask(url, "/version")["device"]
    assert device["device"] == "npu"
    assert device["soc"] == "Ascend910B3 (Atlas A2)"
    assert device["torch_npu"].endswith("(emulated)")
    assert (device["batch_invariance"], device["graphs"]) == ("probed", "decode")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("devices=0", "sees 0 NPUs"),
        ("soc=104", "SoC number 104"),
        ("cann=", "CANN isn't found"),
        ("report=2.1.0", "torch_npu is 2.1.0"),
        ("missing=npu_quant_matmul", "has no op npu_quant_matmul"),
        ("lost_after=400", "error code is 507035"),
    ],
)
def test_a_machine_that_cant_run_it_is_refused_in_one_line(options, message):
    done = run_python(*CLI, "generate", *SMALL, "-p", "Hello", "--max-tokens", "2", options=options)
    assert done.returncode != 0
    said = " ".join(done.stderr.split())  # the terminal's width breaks lines
    assert message in said
    assert "error: device 'npu'" in said
    assert "Traceback" not in said
