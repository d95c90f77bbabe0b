"""Processes are killed in the middle of streams; the clients must not notice."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from qwen3_a8w8.engine.sampling_params import SamplingParams
from tests.support.cluster import DEADLINE_S, stream_text, wait_until
from tests.support.fake_deployment import LETHAL_SEED, POISON_SEED, expected_tokens

pytestmark = [pytest.mark.serve, pytest.mark.chaos]

MAX_TOKENS = 180
SEED = 23


def stream(application, prompt, on_begin=lambda: None, seed=SEED):
    fields = {"extra_body": {"ignore_eos": True}, "max_tokens": MAX_TOKENS, "seed": seed}
    return stream_text(application, prompt, on_begin, **fields)


def undisturbed_text(application, prompt):
    sampling = SamplingParams(max_tokens=MAX_TOKENS, seed=SEED, ignore_eos=True)
    ids = application.tokenizer.encode(prompt)
    (tokens,) = expected_tokens(application.capabilities, ids, sampling)
    return application.tokenizer.decode(tokens)


@pytest.mark.parametrize("victim", ["actor_pid", "replica_pid"])
def test_process_killed_mid_stream_leaves_the_stream_unbroken(application, victim):
    application.wait_until_idle()
    before = application.reports()
    killed = []

    def kill_the_busy_one():
        (busy,) = [report for report in application.reports() if report.stats.num_running]
        killed.append(busy.replica_id)
        os.kill(getattr(busy, victim), signal.SIGKILL)
        application.gate.open()

    with application.gate.closed(10):
        text = stream(application, "the fox", kill_the_busy_one)
    assert text == undisturbed_text(application, "the fox")
    assert len(killed) == 1
    # Serve has put another replica in its place, and nothing is left anywhere.
    wait_until(
        lambda: killed[0] not in {report.replica_id for report in application.reports()},
        "the killed replica is replaced",
    )
    application.wait_until_idle()
    survivors = {r.replica_id for r in application.reports()} & {r.replica_id for r in before}
    assert len(survivors) == 1


def test_all_engines_killed_under_load_still_answers_every_client(application):
    application.wait_until_idle()
    prompts = [f"the fox and {i} dogs" for i in range(6)]
    victims = {report.actor_pid for report in application.reports()}
    have_begun = threading.Barrier(len(prompts) + 1)

    def on_begin():
        have_begun.wait(DEADLINE_S)

    with ThreadPoolExecutor(len(prompts)) as pool, application.gate.closed(0):
        texts = pool.map(lambda prompt: stream(application, prompt, on_begin), prompts)
        application.wait_for_sequences(len(prompts))
        # They go on together, to where each client has some of its text and none has all of it.
        application.gate.close(MAX_TOKENS // 2)
        have_begun.wait(DEADLINE_S)
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        application.gate.open()
        assert list(texts) == [undisturbed_text(application, prompt) for prompt in prompts]
    wait_until(
        lambda: not victims & {report.actor_pid for report in application.reports()},
        "the killed engines are replaced",
    )
    application.wait_until_idle()


def test_request_that_breaks_its_step_ends_alone_and_no_process_does(application):
    application.wait_until_idle()
    before = {(r.replica_pid, r.actor_pid) for r in application.reports()}
    prompts = [f"the fox and {i} dogs" for i in range(6)]
    with (
        application.client() as client,
        ThreadPoolExecutor(len(prompts) + 1) as pool,
        application.gate.closed(0),
    ):
        poisoned = pool.submit(
            client.completions.create,
            model="tiny",
            prompt="the fox",
            max_tokens=100,
            seed=POISON_SEED,
            extra_body={"ignore_eos": True},
        )
        texts = pool.map(lambda p: stream(application, p), prompts)
        application.wait_for_sequences(len(prompts) + 1)
        application.gate.open()
        with pytest.raises(openai.InternalServerError) as caught:
            poisoned.result()
        assert list(texts) == [undisturbed_text(application, prompt) for prompt in prompts]
    assert caught.value.body["type"] == "server_error"
    assert caught.value.body["code"] == "request_failed"
    application.wait_until_idle()
    assert {(r.replica_pid, r.actor_pid) for r in application.reports()} == before


def test_request_that_kills_its_actor_is_given_up_and_the_others_are_unbroken(application):
    application.wait_until_idle()
    prompts = [f"the fox and {i} dogs" for i in range(6)]
    with ThreadPoolExecutor(len(prompts) + 1) as pool, application.gate.closed(0):
        lethal = pool.submit(stream, application, "the fox", seed=LETHAL_SEED)
        texts = pool.map(lambda p: stream(application, p), prompts)
        application.wait_for_sequences(len(prompts) + 1)
        application.gate.open()
        with pytest.raises(openai.APIError, match="crashed 3 times in a row"):
            lethal.result()
        assert list(texts) == [undisturbed_text(application, prompt) for prompt in prompts]
    application.wait_until_idle()
