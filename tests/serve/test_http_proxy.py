"""What stands between a client and the application: sizes, ports, and the end of a process."""

import contextlib
import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from qwen3_a8w8.engine.sampling_params import SamplingParams
from tests.support.cluster import DEADLINE_S, wait_until
from tests.support.fake_deployment import expected_tokens

pytestmark = pytest.mark.serve

SEED = 31


def pids_of(part):
    """Processes of this run's Ray whose command line has this in it."""
    return [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if part in text_of(path) and is_descendant(int(path.parent.name))
    ]


def text_of(path):
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""  # the process has ended


def is_descendant(pid):
    while pid > 1 and pid != os.getpid():
        words = text_of(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
        pid = int(words[1]) if words else 0
    return pid == os.getpid()


def only_pid_of(part):
    """The one process there is, once those that it has taken over from have ended."""
    pids = []

    def is_alone():
        pids[:] = pids_of(part)
        return len(pids) == 1

    wait_until(is_alone, f"one process of {part}")
    return pids[0]


def listening_addresses(pid):
    """Local addresses, as the kernel writes them, at which a process takes connections."""
    inodes = set()
    with contextlib.suppress(OSError):  # the process, or the file, has been closed
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                inodes.add(os.readlink(path).removeprefix("socket:[").removesuffix("]"))
    addresses = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                addresses.add(words[1])
    return addresses


def complete(application, prompt, max_tokens):
    body = {"prompt": prompt, "max_tokens": max_tokens, "seed": SEED, "ignore_eos": True}
    with application.http() as http:
        return http.post("/v1/completions", json=body)


@pytest.fixture
def behind_haproxy(application):
    if application.http_proxy != "haproxy":
        pytest.skip("the application stands behind Serve's Python proxy")
    return application


def test_haproxy_takes_connections_at_the_applications_address_only(behind_haproxy):
    port = urlsplit(behind_haproxy.url).port
    expected = {f"0100007F:{port:04X}"}
    # One that is being replaced listens nowhere any more, and the new one not yet.
    wait_until(
        lambda: [listening_addresses(pid) for pid in pids_of("/qa8w8-")] == [expected],
        f"one HAProxy listens at {expected} only",
    )


def test_long_and_many_headers_get_the_applications_answers(application):
    with application.http() as http:
        long_headers = http.get("/v1/models", headers={"X-Long": "a" * 40_000})
        assert long_headers.status_code == 431
        assert long_headers.json()["error"]["code"] == "headers_too_large"
        assert http.get("/v1/models", headers={f"x-{i}": "1" for i in range(150)}).is_success
        many_headers = http.get("/v1/models", headers={f"x-{i}": "" for i in range(8000)})
        assert many_headers.status_code == 431


def test_long_bodies_get_the_applications_answer(application):
    def is_rejected():
        try:
            with application.http() as http:
                answer = http.post(
                    "/v1/completions",
                    content=b" " * (17 * 2**20),
                    headers={"Content-Type": "application/json"},
                )
        except httpx.TransportError:
            # The ingress responds without reading the body and closes the connection: sometimes
            # that reaches HAProxy before the response does.
            return False
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "request_too_large"
        return True

    wait_until(is_rejected, "the response comes whole")


def test_what_is_not_http_gets_a_400_and_the_server_continues(application):
    parts = urlsplit(application.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=DEADLINE_S) as connection:
        connection.sendall(b"GARBAGE\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")
    with application.http() as http:
        assert http.get("/health").status_code == 200


def post_all(clients, pool, prompts, max_tokens):
    """Sends completions at once, each on its client's connection; futures of their answers."""
    body = {"max_tokens": max_tokens, "seed": SEED, "ignore_eos": True}
    return [
        pool.submit(client.post, "/v1/completions", json={"prompt": prompt, **body})
        for client, prompt in zip(clients, prompts, strict=True)
    ]


def assert_is_answer(application, answer, prompt, max_tokens):
    assert answer.status_code == 200, answer.text
    sampling = SamplingParams(max_tokens=max_tokens, seed=SEED, ignore_eos=True)
    prompt_ids = application.tokenizer.encode(prompt)
    (ids,) = expected_tokens(application.capabilities, prompt_ids, sampling)
    assert answer.json()["choices"][0]["text"] == application.tokenizer.decode(ids)


@pytest.mark.chaos
def test_ingress_killed_under_whole_answers_gives_all_of_them_and_answers_new_ones(behind_haproxy):
    application = behind_haproxy
    application.wait_until_idle()
    victim = only_pid_of("ServeReplica:qwen3-a8w8:Ingress")
    prompts = [f"the fox and {i} dogs" for i in range(4)]
    others = [f"a dog and {i} foxes" for i in range(20)]
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(len(others)) as pool:
        clients = [stack.enter_context(application.http()) for _ in others]
        # Connections that have been used before, some of which rest when the ingress ends.
        for future in post_all(clients, pool, others, 1):
            assert future.result().status_code == 200
        with application.gate.closed(20):
            under_way = post_all(clients[: len(prompts)], pool, prompts, 150)
            application.wait_for_sequences(len(prompts))
            os.kill(victim, signal.SIGKILL)
        assert_is_answer(application, complete(application, "the fox", 5), "the fox", 5)
        for prompt, future in zip(prompts, under_way, strict=True):
            assert_is_answer(application, future.result(), prompt, 150)
    application.wait_until_idle()
    assert pids_of("ServeReplica:qwen3-a8w8:Ingress") != [victim]


@pytest.mark.chaos
def test_proxy_that_is_killed_is_replaced(application):
    part = "/qa8w8-" if application.http_proxy == "haproxy" else "ray::ProxyActor"
    victim = only_pid_of(part)
    os.kill(victim, signal.SIGKILL)

    def answers():
        try:
            with application.http() as http:
                return http.get("/health").status_code == 200
        except httpx.TransportError:
            return False

    wait_until(lambda: pids_of(part) not in ([], [victim]), "another proxy is there")
    wait_until(answers, "another proxy answers")
    assert complete(application, "the fox", 1).status_code == 200
