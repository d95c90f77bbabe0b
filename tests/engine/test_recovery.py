"""Failed steps of a runner: which requests end, which continue, and when the engine is dead."""

import re
from dataclasses import replace

import pytest

from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.engine.engine import Engine
from qwen3_a8w8.engine.request import EngineRequest
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.errors import EngineDeadError, InvalidRequestError, RequestFailedError
from tests.support.fakes import FakeRunner, expected_outputs, make_capabilities
from tests.support.step_driver import StepDriver

POISON = 666


def make_request(i=0, length=6, seed=None, max_tokens=12, **options):
    sampling = SamplingParams(
        seed=i if seed is None else seed, max_tokens=max_tokens, ignore_eos=True
    )
    return EngineRequest(tuple(range(10 + 20 * i, 10 + 20 * i + length)), sampling, **options)


def make_poison(i=9, length=6, **options):
    return make_request(i, length, seed=POISON, **options)


@pytest.fixture(params=[0, 1], ids=["lookahead0", "lookahead1"])
def driver(request):
    driver = StepDriver(make_capabilities(), EngineConfig(lookahead=request.param))
    driver.runner.poison = {POISON: 10}
    yield driver
    assert driver.core.stats().num_blocks_in_use == 0
    assert driver.runner.known == {}


def check_others(driver, ids, requests):
    for seq_id, request in zip(ids, requests, strict=True):
        assert [driver.tokens[seq_id]] == expected_outputs(request, driver.core.capabilities)
        assert driver.ends[seq_id].finish_reason == "length"


@pytest.mark.parametrize("num_others", [0, 1, 7, 15])
def test_request_that_breaks_its_step_ends_alone_and_the_others_continue(driver, num_others):
    requests = [make_request(i) for i in range(num_others)]
    ids = [driver.add(request) for request in requests]
    poison = driver.add(make_poison())
    driver.run()
    assert isinstance(driver.ends[poison].error, RequestFailedError)
    assert "ValueError" not in str(driver.ends[poison].error)
    # 6 prompt tokens and 4 more are given; the step that reads the tenth fails.
    (whole,) = expected_outputs(make_poison(), driver.core.capabilities)
    assert driver.tokens[poison] == whole[:4]
    check_others(driver, ids, requests)
    counts = driver.core.stats().num_finished
    assert counts == {"error": 1} | ({"length": num_others} if num_others else {})


def test_failure_is_logged_under_the_id_that_the_client_gets(driver, caplog):
    poison = driver.add(make_poison())
    driver.run()
    failure_id = str(driver.ends[poison].error).rsplit(" ", 1)[1]
    (record,) = [r.getMessage() for r in caplog.records if failure_id in r.getMessage()]
    assert "ValueError: poison" in record
    assert f"sequence {poison} (6 prompt tokens, 4 generated)" in record


def test_prompt_that_breaks_its_first_step_ends_before_any_token(driver):
    driver.runner.poison = {POISON: 1}
    other = make_request(max_tokens=30)
    other_id = driver.add(other)
    for _ in range(4):
        driver.step()
    poison = driver.add(make_poison(length=40))
    driver.run()
    assert driver.tokens[poison] == []
    assert isinstance(driver.ends[poison].error, RequestFailedError)
    check_others(driver, [other_id], [other])


def test_several_bad_requests_end_one_by_one(driver):
    requests = [make_request(i) for i in range(4)]
    bad = [driver.add(make_poison(5 + i)) for i in range(3)]
    ids = [driver.add(request) for request in requests]
    driver.run()
    assert all(isinstance(driver.ends[i].error, RequestFailedError) for i in bad)
    check_others(driver, ids, requests)


@pytest.mark.parametrize("step", range(6))
@pytest.mark.parametrize("num_requests", [1, 5])
def test_step_that_fails_once_costs_nobody_anything(driver, step, num_requests):
    driver.runner.flaky_steps = {step}
    requests = [make_request(i) for i in range(num_requests)]
    ids = [driver.add(request) for request in requests]
    driver.run()
    check_others(driver, ids, requests)
    assert driver.core.stats().counters.num_failed_steps == 1


def test_failures_that_no_isolated_retry_explains_end_the_sequences_in_the_end(driver):
    # Only whole batches fail, so that every isolated retry passes.
    execute = driver.runner.execute

    def fails_in_batches(plan):
        if plan.decode and plan.decode.batch_size == 16:
            driver.runner.flaky_steps.add(plan.step_id)
        return execute(plan)

    driver.runner.execute = fails_in_batches
    ids = [driver.add(make_request(i, max_tokens=60)) for i in range(8)]
    driver.run()
    assert all(isinstance(driver.ends[i].error, RequestFailedError) for i in ids)
    assert driver.core.stats().counters.num_failed_steps == 4


def test_runner_that_fails_whatever_it_gets_is_dead(driver):
    driver.runner.fail_at_step = 3
    ids = [driver.add(make_request(i)) for i in range(3)]
    driver.run()
    for i in ids:
        assert isinstance(driver.ends[i].error, EngineDeadError)
        assert re.search("whatever it is given.*OSError: device lost", str(driver.ends[i].error))
    # Single steps are cheaper for three, so one of them was being computed.
    assert [driver.ends[i].error.was_computing for i in ids].count(True) == 1
    assert driver.core.stats().num_finished == {"error": 3}
    driver.runner.known.clear()


def test_crash_is_counted_only_for_what_was_in_a_step(driver):
    running = [driver.add(make_request(i)) for i in range(16)]
    waiting = [driver.add(make_request(16 + i)) for i in range(2)]
    driver.send()
    in_flight = {i for plan in driver.in_flight for i in plan.seq_ids}
    driver.fail_all(EngineDeadError("the actor is gone"))
    was_computing = {i: driver.ends[i].error.was_computing for i in running + waiting}
    assert was_computing == {i: i in in_flight for i in running + waiting}
    assert not any(was_computing[i] for i in waiting)


def test_closing_is_nobodys_fault(driver):
    (seq_id,) = [driver.add(make_request())]
    driver.send()
    driver.fail_all(EngineDeadError("closed", was_computing=False))
    assert not driver.ends[seq_id].error.was_computing


def test_request_whose_engines_crashed_twice_runs_in_isolation_until_it_has_tokens(driver):
    others = [make_request(i, max_tokens=20) for i in range(3)]
    ids = [driver.add(request) for request in others]
    for _ in range(5):
        driver.step()
    crasher = make_request(5, num_engine_crashes=2)
    crasher_id = driver.add(crasher)
    num_before = len(driver.runner.plans)
    driver.run()
    check_others(driver, [*ids, crasher_id], [*others, crasher])
    with_it = [p.seq_ids for p in driver.runner.plans[num_before:] if crasher_id in p.seq_ids]
    assert with_it[:3] == [(crasher_id,)] * 3
    assert any(len(seq_ids) > 1 for seq_ids in with_it[3:])


def test_bad_row_of_an_explicit_batch_ends_alone(driver):
    batch = [make_request(i, length=3) for i in range(15)] + [make_poison(15, length=3)]
    ids = driver.add_batch(batch)
    driver.run()
    assert isinstance(driver.ends[ids[15]].error, RequestFailedError)
    check_others(driver, ids[:15], batch[:15])


@pytest.mark.parametrize("when", range(12))
def test_abort_during_recovery_leaves_nothing(driver, when):
    driver.runner.poison = {POISON: 8}
    ids = [driver.add(request) for request in (make_request(), make_poison(), make_request(1))]
    for _ in range(when):
        driver.step()
    for seq_id in ids:
        driver.abort(seq_id)
    driver.run()
    assert set(driver.ends) == set(ids)


def test_layered_prefill_restarts_after_a_failure():
    config = EngineConfig(prefill_layers_per_dispatch=2, max_decode_stall_ms=None)
    driver = StepDriver(make_capabilities(num_layers=6), config)
    driver.runner.layers_per_dispatch = 2
    driver.runner.flaky_steps = {1}
    requests = [make_request(i, length=18) for i in range(3)]
    ids = [driver.add(request) for request in requests]
    driver.run()
    check_others(driver, ids, requests)


def test_engine_in_process_raises_for_the_bad_request_and_serves_the_next():
    runner = FakeRunner()
    runner.poison = {POISON: 10}
    engine = Engine(runner, EngineConfig())
    stream = engine.stream(make_request(1, max_tokens=30))
    first = next(stream)
    with pytest.raises(RequestFailedError):
        engine.generate([make_request(2), make_poison()])
    tokens = [*first.token_ids, *(t for event in stream for t in event.token_ids)]
    assert [tokens] == expected_outputs(make_request(1, max_tokens=30), runner.capabilities)
    (output,) = engine.generate([make_request(3)])
    assert [list(output.token_ids)] == expected_outputs(make_request(3), runner.capabilities)
    assert engine.stats().num_blocks_in_use == 0
    engine.close()


@pytest.mark.parametrize("step", [0, 1, 2, 3, 5])
def test_prompt_logprobs_are_emitted_once_and_completely_over_a_failed_step(driver, step):
    emitted = {}

    def take(event):
        if event.prompt_tokens:
            assert event.seq_id not in emitted
            emitted[event.seq_id] = [(t.position, t.token_id) for t in event.prompt_tokens]
        StepDriver.take(driver, event)

    driver.take = take
    driver.runner.flaky_steps = {step}
    prompt = tuple(range(10, 50))
    sampling = SamplingParams(seed=0, max_tokens=12, ignore_eos=True, prompt_logprobs=1)
    request, others = EngineRequest(prompt, sampling), [make_request(i) for i in (1, 2)]
    seq_id, *ids = [driver.add(one) for one in (request, *others)]
    driver.run()
    assert driver.core.stats().counters.num_failed_steps == 1
    assert emitted == {seq_id: [(p, prompt[p]) for p in range(1, 40)]}
    check_others(driver, [seq_id, *ids], [request, *others])


def test_output_that_leaves_its_grammar_in_an_isolated_retry_ends_alone(driver):
    class FormRunner:
        """Reports for one sequence that its grammar allows nothing after its fifth token."""

        def execute(self, plan):
            result = driver_runner.execute(plan)
            lost = [t for t in result.sampled if t.seq_id == seq_id and t.position >= 11]
            sampled = [t._replace(error="too deep") if t in lost else t for t in result.sampled]
            return replace(result, sampled=tuple(sampled))

    driver_runner = driver.runner
    driver_runner.flaky_steps = {4}  # all have given tokens; what follows are isolated retries
    driver.runner = FormRunner()
    requests = [make_request(i) for i in range(3)]
    ids = [driver.add(request) for request in requests]
    seq_id = ids[0]
    driver.run()
    driver.runner = driver_runner
    (whole,) = expected_outputs(requests[0], driver.core.capabilities)
    assert driver.tokens[seq_id] == whole[:5]
    assert isinstance(driver.ends[seq_id].error, InvalidRequestError)
    assert "after 5 tokens: too deep" in str(driver.ends[seq_id].error)
    check_others(driver, ids[1:], requests[1:])
    assert driver.core.stats().num_finished == {"error": 1, "length": 2}
