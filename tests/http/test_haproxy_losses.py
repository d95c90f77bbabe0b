"""HAProxy always sends a response, whatever crashes behind it, and errors are JSON."""

import contextlib
import resource
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.haproxy_rig import running_haproxy, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Ray has HAProxy for Linux only")

NUM_CLIENTS = 8
LOST = {
    "error": {
        "message": "the connection to the server was lost; try again",
        "type": "server_error",
        "param": None,
        "code": "engine_dead",
    }
}


@pytest.fixture
def rig():
    with running_haproxy() as running:
        yield running


def answers_of_killed_ingress(rig, body=b"{}", *, before_it_is_killed=lambda: None):
    """Answers to requests that the ingress had when it was killed.

    Neither the clients' connections nor HAProxy's to the ingress are used for the first time.
    """
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(NUM_CLIENTS) as pool:
        clients = [stack.enter_context(rig.client()) for _ in range(NUM_CLIENTS)]
        before = list(pool.map(lambda client: client.post("/", content=body), clients))
        assert [answer.text for answer in before] == ["ingress"] * NUM_CLIENTS
        under_way = [pool.submit(client.post, "/hold", content=body) for client in clients]
        wait_until(lambda: rig.ingress.num_held == NUM_CLIENTS, "the ingress has all requests")
        before_it_is_killed()
        rig.ingress.kill()
        return [future.result() for future in under_way]


def assert_lost(answer):
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == LOST


def test_requests_of_a_killed_ingress_are_sent_to_the_fallback(rig):
    for answer in answers_of_killed_ingress(rig):
        assert (answer.status_code, answer.text) == (200, "fallback")


def test_requests_of_a_killed_ingress_are_sent_to_the_fallback_by_a_haproxy_that_ends(rig):
    for answer in answers_of_killed_ingress(rig, before_it_is_killed=rig.reload):
        assert (answer.status_code, answer.text) == (200, "fallback")


def test_requests_of_a_killed_ingress_without_a_fallback_get_a_503(rig):
    rig.fallback.kill()
    for answer in answers_of_killed_ingress(rig):
        assert_lost(answer)


def test_requests_too_long_to_be_sent_again_get_a_503(rig):
    buffer_bytes = int(rig.environment["RAY_SERVE_HAPROXY_TUNE_BUFSIZE"])
    for answer in answers_of_killed_ingress(rig, b" " * buffer_bytes):
        assert_lost(answer)


def test_plain_failure_of_serves_proxy_becomes_a_503(rig):
    with rig.client() as client:
        assert_lost(client.get("/fails"))


def test_haproxy_starts_where_few_files_may_be_open(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 1024))
    with (
        running_haproxy(prefix=["sh", "-c", 'ulimit -n 1024; exec "$@"', "sh"]) as rig,
        rig.client() as client,
    ):
        assert client.get("/").text == "ingress"
