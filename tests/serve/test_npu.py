"""The application on emulated NPUs: Ray, HTTP, a true batch of 16, a device that is lost."""

import json
import os
import re
import subprocess
import sys
import threading
import urllib.request

import openai
import pytest

from deployments.local.ports import free_port
from tests.support.cluster import wait_until
from tests.support.npu_emulation import ROOT, environment, run_python

pytestmark = [pytest.mark.serve, pytest.mark.npu_contract, pytest.mark.slow]

CLI = ("-c", "from qwen3_a8w8.cli.main import main; main()")
SMALL = ("--model", "demo", "--device", "npu", "--max-model-len", "256", "--num-kv-blocks", "200")
DEADLINE_S = 300
NUM_REPLICAS = 2
PIDS = re.compile(r'qwen3_a8w8_replica_info\{.*actor_pid="(\d+)".*pid="(\d+)"')


@pytest.fixture(scope="module")
def lost_when(tmp_path_factory):
    """A file; while it is there, the next process that computes loses its device."""
    return tmp_path_factory.mktemp("devices") / "lost"


@pytest.fixture(scope="module")
def url(lost_when):
    """`qwen3-a8w8 serve --device npu`, two replicas; it says itself when it is ready."""
    port = free_port()
    command = [sys.executable, *CLI, "serve", *SMALL, "--port", str(port)]
    command += ["--num-replicas", str(NUM_REPLICAS)]
    env = environment(f"lost_when={lost_when}")
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as process:
        hanging = threading.Timer(DEADLINE_S, process.kill)
        hanging.start()
        try:
            line = process.stdout.readline()
            assert line.startswith("Serving at "), line
            yield f"http://127.0.0.1:{port}"
        finally:
            hanging.cancel()
            process.terminate()


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


def test_version_shows_the_device_and_what_it_promises(url):
    device = ask(url, "/version")["device"]
    assert device["device"] == "npu"
    assert device["soc"] == "Ascend910B3 (Atlas A2)"
    assert device["torch_npu"].endswith("(emulated)")
    assert (device["batch_invariance"], device["graphs"]) == ("probed", "decode")


def processes(url):
    """The actor's and the replica's process of each replica."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=DEADLINE_S) as response:
        return {tuple(map(int, found)) for found in PIDS.findall(response.read().decode())}


def test_a_device_lost_in_mid_stream_ends_its_replica_and_the_stream_goes_on_elsewhere(
    url, lost_when
):
    before = processes(url)
    assert len(before) == NUM_REPLICAS
    settings = {"max_tokens": 120, "temperature": 0.8, "seed": 5}
    with openai.OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0) as client:
        parts, reasons = [], []
        for chunk in client.completions.create(
            model="demo",
            prompt="The number after 7 is",
            stream=True,
            extra_body={"ignore_eos": True},
            **settings,
        ):
            if not parts:
                lost_when.touch()
            parts.append(chunk.choices[0].text)
            reasons.append(chunk.choices[0].finish_reason)
        undisturbed = client.completions.create(
            model="demo",
            prompt="The number after 7 is",
            extra_body={"ignore_eos": True},
            **settings,
        )
    (lost,) = lost_when.parent.iterdir()
    ended = int(lost.name.removeprefix("lost."))
    assert ended in {actor for actor, _ in before}
    assert [reason for reason in reasons if reason] == ["length"]
    assert len(parts) > 2
    assert "".join(parts) == undisturbed.choices[0].text
    (its_own,) = [pids for pids in before if ended in pids]
    for pid in its_own:
        wait_until(lambda pid=pid: not is_running(pid), f"process {pid} has ended")
    wait_until(lambda: len(processes(url) - {its_own}) == NUM_REPLICAS, "another replica is there")


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


REFUSALS = {
    "devices=0": "sees 0 NPUs",
    "soc=104": "SoC number 104",
    "cann=": "CANN isn't found",
    "report=2.1.0": "torch_npu is 2.1.0",
}
GENERATE = ("generate", *SMALL, "-p", "Hello", "--max-tokens", "2")
EACH_IN_TURN = """
import sys
import torch_npu
from torch_npu._emulation import options as emulated
from qwen3_a8w8.cli.main import main
whole = vars(emulated.options).copy()
for text in sys.argv.pop(1).split("|"):
    vars(emulated.options).update(whole)
    name = text.partition("=")[0]
    setattr(emulated.options, name, getattr(emulated.parse(text), name))
    torch_npu.__version__ = emulated.options.reported_version
    print("<<<", file=sys.stderr)
    try:
        main()
    except SystemExit as end:
        print(f">>> {end.code}", file=sys.stderr)
"""


def said_by(stderr):
    return " ".join(stderr.split())  # the terminal's width breaks lines


def test_machines_that_cant_run_it_are_refused_in_one_line():
    done = run_python("-c", EACH_IN_TURN, "|".join(REFUSALS), *GENERATE)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    parts = said_by(done.stderr).split("<<< ")[1:]
    for part, message in zip(parts, REFUSALS.values(), strict=True):
        assert part.startswith("error: device 'npu'")
        assert message in part
        assert part.strip().endswith(">>> 1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("missing=npu_quant_matmul", "has no op npu_quant_matmul"),
        ("lost_after=400", "error code is 507035"),
    ],
)
def test_a_machine_that_cant_run_it_is_refused_in_one_line(options, message):
    done = run_python(*CLI, *GENERATE, options=options)
    assert done.returncode != 0
    said = said_by(done.stderr)
    assert message in said
    assert "error: device 'npu'" in said
    assert "Traceback" not in said
