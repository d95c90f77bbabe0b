"""Processes are killed in the middle of streams; the clients must not notice."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from qwen3_a8w8.engine.sampling_params import SamplingParams
from tests.support.cluster import stream_text, wait_until
from tests.support.fake_deployment import LETHAL_SEED, POISON_SEED, expected_tokens

pytestmark = [pytest.mark.serve, pytest.mark.chaos]

MAX_TOKENS = 180
SEED = 23


def stream(application, prompt, on_chunk=lambda num_chunks: None, seed=SEED):
    fields = {"extra_body": {"ignore_eos": True}, "max_tokens": MAX_TOKENS, "seed": seed}
    return stream_text(application, prompt, on_chunk, **fields)


def undisturbed_text(application, prompt):
    sampling = SamplingParams(max_tokens=MAX_TOKENS, seed=SEED, ignore_eos=True)
    ids = application.tokenizer.encode(prompt)
    (tokens,) = expected_tokens(application.capabilities, ids, sampling)
    return application.tokenizer.decode(tokens)


def busy_reports(application):
    return [report for report in application.reports() if report.stats.num_running]


@pytest.mark.parametrize("victim", ["actor_pid", "replica_pid"])
def test_process_killed_mid_stream_leaves_the_stream_unbroken(application, victim):
    application.wait_until_idle()
    before = application.reports()
    killed = []

    def kill_the_busy_one(num_chunks):
        if num_chunks == 10:
            (busy,) = busy_reports(application)
            killed.append(busy.replica_id)
            os.kill(getattr(busy, victim), signal.SIGKILL)

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
    victims = [report.actor_pid for report in application.reports()]
    has_killed = []

    def kill_all(num_chunks):
        if num_chunks == 10 and not has_killed:
            has_killed.append(True)
            for pid in victims:
                os.kill(pid, signal.SIGKILL)

    with ThreadPoolExecutor(len(prompts)) as pool:
        texts = list(pool.map(lambda p: stream(application, p, kill_all), prompts))
    assert texts == [undisturbed_text(application, prompt) for prompt in prompts]
    application.wait_until_idle()
    assert not {r.actor_pid for r in application.reports()} & set(victims)


def test_request_that_breaks_its_step_ends_alone_and_no_process_does(application):
    application.wait_until_idle()
    before = {(r.replica_pid, r.actor_pid) for r in application.reports()}
    prompts = [f"the fox and {i} dogs" for i in range(6)]
    with ThreadPoolExecutor(len(prompts) + 1) as pool:
        texts = pool.map(lambda p: stream(application, p), prompts)
        with application.client() as client, pytest.raises(openai.InternalServerError) as caught:
            client.completions.create(
                model="tiny",
                prompt="the fox",
                max_tokens=100,
                seed=POISON_SEED,
                extra_body={"ignore_eos": True},
            )
        assert list(texts) == [undisturbed_text(application, prompt) for prompt in prompts]
    assert caught.value.body["type"] == "server_error"
    assert caught.value.body["code"] == "request_failed"
    application.wait_until_idle()
    assert {(r.replica_pid, r.actor_pid) for r in application.reports()} == before


def test_request_that_kills_its_actor_is_given_up_and_the_others_are_unbroken(application):
    application.wait_until_idle()
    prompts = [f"the fox and {i} dogs" for i in range(6)]
    with ThreadPoolExecutor(len(prompts) + 1) as pool:
        texts = pool.map(lambda p: stream(application, p), prompts)
        with pytest.raises(openai.APIError, match="crashed 3 times in a row"):
            stream(application, "the fox", seed=LETHAL_SEED)
        assert list(texts) == [undisturbed_text(application, prompt) for prompt in prompts]
    application.wait_until_idle()
