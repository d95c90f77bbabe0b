"""The real model under two long streams whose replica is killed: the same words come."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.cluster import demo_application, stream_text, wait_until

pytestmark = [pytest.mark.serve, pytest.mark.chaos]

PROMPTS = ["Tell me a story about a fox.", "What is the capital of France?"]


@pytest.fixture(scope="module")
def demo(application, tmp_path_factory):
    with demo_application(application, tmp_path_factory.mktemp("demo")) as running:
        yield running


def stream(demo, prompt, on_begin=lambda: None, max_tokens=400, **fields):
    return stream_text(
        demo,
        prompt,
        on_begin,
        max_tokens=max_tokens,
        temperature=0.8,
        seed=5,
        extra_body=fields or {"ignore_eos": True},
    )


@pytest.mark.parametrize("victim", ["replica_pid", "actor_pid"])
def test_killed_process_leaves_two_long_streams_as_they_would_have_been(demo, victim):
    undisturbed = [stream(demo, prompt) for prompt in PROMPTS]
    demo.wait_until_idle()
    before = {report.replica_id for report in demo.reports()}
    killed = []

    def kill_the_busiest():
        demo.wait_for_sequences(len(PROMPTS))
        busiest = max(demo.reports(), key=lambda report: report.stats.num_running)
        killed.append(busiest.replica_id)
        assert busiest.stats.num_running > 0
        os.kill(getattr(busiest, victim), signal.SIGKILL)
        demo.gate.open()

    with ThreadPoolExecutor(len(PROMPTS)) as pool, demo.gate.closed(20):
        first = pool.submit(stream, demo, PROMPTS[0], kill_the_busiest)
        second = pool.submit(stream, demo, PROMPTS[1])
        assert [first.result(), second.result()] == undisturbed
    wait_until(
        lambda: killed[0] not in {report.replica_id for report in demo.reports()},
        "the killed replica is replaced",
    )
    demo.wait_until_idle()
    assert len(before & {report.replica_id for report in demo.reports()}) == 1


def test_structured_output_survives_the_crash_of_its_actor(demo):
    asked = {"max_tokens": 300, "guided_regex": "[A-F0-9-]{4000,5000}"}
    undisturbed = stream(demo, PROMPTS[0], **asked)
    assert set(undisturbed) <= set("ABCDEF0123456789-")
    killed = []

    def kill_the_busy_one():
        busy = max(demo.reports(), key=lambda report: report.stats.num_running)
        assert busy.stats.num_running > 0
        killed.append(busy.actor_pid)
        os.kill(busy.actor_pid, signal.SIGKILL)
        demo.gate.open()

    with demo.gate.closed(20):
        assert stream(demo, PROMPTS[0], kill_the_busy_one, **asked) == undisturbed
    assert len(killed) == 1
    demo.wait_until_idle()
