"""The queue: priorities, deadlines, salts, its limits and what is said when it is full."""

import pytest

from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.engine.admission.queue_limit import RateMeter
from qwen3_a8w8.engine.core import EngineCore
from qwen3_a8w8.engine.request import EngineRequest
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.errors import CapacityError, InvalidRequestError
from tests.support.fakes import FakeRunner, expected_outputs, make_capabilities


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


def make_core(capabilities=None, clock=None, **config):
    return EngineCore(
        make_capabilities(**(capabilities or {})),
        EngineConfig(**{"lookahead": 0, **config}),
        clock=clock or Clock(),
    )


def make_request(first=10, length=5, max_tokens=4, **options):
    sampling = SamplingParams(seed=1, max_tokens=max_tokens, ignore_eos=True)
    return EngineRequest(tuple(range(first, first + length)), sampling, **options)


def step(core, runner):
    plan = core.plan_step()
    return core.complete_step(runner.execute(plan)) if plan else []


def run(core, runner):
    events = {}
    while plan := core.plan_step():
        for event in core.complete_step(runner.execute(plan)):
            events.setdefault(event.seq_id, []).append(event)
    return events


# --- priority ------------------------------------------------------------------------------------


def test_waiting_sequences_start_by_priority_then_by_arrival():
    core = make_core(max_running_requests=1)
    for priority in (5, 0, 5, -1, 0):
        core.add(make_request(priority=priority))
    runner = FakeRunner(core.capabilities)
    run(core, runner)
    assert [s.seq_id for plan in runner.plans for s in plan.start] == [3, 1, 4, 0, 2]


def test_blocks_are_taken_from_the_lowest_priority_not_the_newest():
    core = make_core({"num_kv_blocks": 9, "decode_step_s": {1: 0.01, 16: 0.01}})
    requests = [make_request(100 * i + 10, 12, 12, priority=p) for i, p in enumerate((1, 0))]
    sequences = [core.sequence(*core.add(request)) for request in requests]
    events = run(core, FakeRunner(core.capabilities))
    assert [seq.num_preemptions for seq in sequences] == [1, 0]
    for seq_id, request in enumerate(requests):
        tokens = [t for event in events[seq_id] for t in event.token_ids]
        assert [tokens] == expected_outputs(request, core.capabilities)


def test_explicit_batch_takes_the_lowest_priority_value_of_its_requests():
    core = make_core({"num_kv_blocks": 200})
    ids = core.add_batch([make_request(priority=7 - i) for i in range(16)])
    assert {core.sequence(i).rank for i in ids} == {(-8, i) for i in ids}


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"priority": 1.0}, "priority"),
        ({"priority": True}, "priority"),
        ({"priority": 2**31}, "priority"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": float("nan")}, "timeout_s"),
        ({"timeout_s": "1"}, "timeout_s"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"cache_salt": "x" * 257}, "cache_salt"),
        ({"cache_salt": 7}, "cache_salt"),
    ],
)
def test_option_out_of_range_is_refused_at_admission(options, param):
    core = make_core()
    with pytest.raises(InvalidRequestError, match=f"^{param} is ") as caught:
        core.add(make_request(**options))
    assert caught.value.param == param
    assert core.num_active_sequences == 0


# --- deadlines -----------------------------------------------------------------------------------


def test_running_sequence_past_its_deadline_ends_with_the_tokens_of_the_step():
    clock = Clock()
    core = make_core(clock=clock)
    runner = FakeRunner(core.capabilities)
    (seq_id,) = core.add(make_request(max_tokens=50, timeout_s=3.0))
    assert step(core, runner)[0].finish_reason is None
    clock.now_s += 3.0
    (event,) = step(core, runner)
    assert (len(event.token_ids), event.finish_reason) == (1, "timeout")
    assert core.num_active_sequences == 0
    assert core.stats().num_blocks_in_use == 0
    assert core.stats().num_finished == {"timeout": 1}
    assert core.plan_step().release == (seq_id,)


def test_waiting_sequence_past_its_deadline_ends_without_tokens():
    clock = Clock()
    core = make_core(clock=clock, max_running_requests=1)
    runner = FakeRunner(core.capabilities)
    core.add(make_request(max_tokens=50))
    (waiting,) = core.add(make_request(timeout_s=1.0))
    step(core, runner)
    clock.now_s += 1.5
    events = {event.seq_id: event for event in step(core, runner)}
    assert (events[waiting].token_ids, events[waiting].finish_reason) == ((), "timeout")
    assert core.num_active_sequences == 1


def test_sequence_that_ends_in_the_step_of_its_deadline_keeps_its_own_reason():
    clock = Clock()
    core = make_core(clock=clock)
    core.add(make_request(max_tokens=1, timeout_s=1.0))
    clock.now_s += 5.0
    (event,) = step(core, FakeRunner(core.capabilities))
    assert event.finish_reason == "length"


# --- what is counted -----------------------------------------------------------------------------


def test_queue_time_counts_from_arrival_to_the_first_blocks_once():
    clock = Clock()
    core = make_core(clock=clock, max_running_requests=1)
    runner = FakeRunner(core.capabilities)
    for i in range(2):
        core.add(make_request(first=20 * i, max_tokens=2))
    for _ in range(4):
        clock.now_s += 3.0
        step(core, runner)
    counters = core.stats().counters
    # The first is admitted in the step after 3 s, the second in the third one, after 9 s.
    assert (counters.queue_times.count, counters.queue_times.total) == (2, 12.0)


def test_every_decision_is_in_the_debug_log(caplog):
    caplog.set_level("DEBUG", logger="qwen3_a8w8.engine.core")
    core = make_core()
    core.add(make_request(max_tokens=2))
    run(core, FakeRunner(core.capabilities))
    assert "decode_reason='1 ready, exactly a batch'" in caplog.text


# --- prefix cache --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "start"),
    [(None, None, 32), ("a", "a", 32), ("a", "b", 0), (None, "a", 0), ("a", None, 0)],
)
def test_blocks_are_shared_only_under_the_same_salt(first, second, start):
    core = make_core()
    runner = FakeRunner(core.capabilities)
    core.add(make_request(length=33, cache_salt=first))
    run(core, runner)
    core.add(make_request(length=33, cache_salt=second))
    assert core.plan_step().prefill[0].start == start


def test_hit_rate_counts_prompt_tokens():
    core = make_core()
    runner = FakeRunner(core.capabilities)
    assert core.stats().counters.prefix_hit_rate == 0.0
    for _ in range(2):
        core.add(make_request(length=33))
        run(core, runner)
    assert core.stats().counters.prefix_hit_rate == 32 / 66


# --- limits --------------------------------------------------------------------------------------


def test_queue_bounds_tokens_but_takes_one_request_of_any_length_alone():
    core = make_core(max_running_requests=1, max_queued_tokens=20)
    core.add(make_request(length=30))
    assert core.plan_step() is not None
    core.add(make_request(length=30))
    assert not core.has_room(make_request(length=1))
    with pytest.raises(CapacityError, match=r"30 tokens are waiting and 5 more .* is 20"):
        core.add(make_request())
    assert core.stats().num_waiting_tokens == 30


def test_queue_takes_requests_up_to_its_tokens():
    core = make_core(max_running_requests=1, max_queued_tokens=20)
    for _ in range(4):
        core.add(make_request())
    assert not core.has_room(make_request())
    assert core.has_room(make_request(length=1)) is False
    assert core.plan_step() is not None  # one has left the queue
    assert core.has_room(make_request())


def test_rate_meter_extrapolates_and_sees_a_standstill():
    meter = RateMeter()
    assert meter.seconds_for(1, 0.0) is None
    meter.add(10.0)
    assert meter.seconds_for(1, 11.0) is None
    for now_s in (12.0, 14.0, 16.0):
        meter.add(now_s)
    assert meter.seconds_for(1, 16.0) == 2.0
    assert meter.seconds_for(3, 16.0) == 6.0
    assert meter.seconds_for(1, 40.0) == 10.0


def test_retry_after_follows_the_measured_rate_of_ends():
    clock = Clock()
    core = make_core(clock=clock, max_running_requests=1, max_queued_requests=4)
    runner = FakeRunner(core.capabilities)
    for i in range(5):
        core.add(make_request(max_tokens=1, first=20 * i))
    for _ in range(3):  # one end every five seconds
        clock.now_s += 5.0
        step(core, runner)
    for i in range(3):
        core.add(make_request(first=20 * i))
    with pytest.raises(CapacityError) as caught:
        core.add(make_request())
    assert caught.value.retry_after_s == 5.0


def test_retry_after_of_tokens_follows_the_measured_rate_of_prefill():
    clock = Clock()
    core = make_core(clock=clock, max_running_requests=1, max_queued_tokens=30)
    runner = FakeRunner(core.capabilities)
    for i in range(6):
        core.add(make_request(max_tokens=1, first=20 * i))
    for _ in range(3):  # five tokens every two seconds
        clock.now_s += 2.0
        step(core, runner)
    core.add(make_request(length=15))
    with pytest.raises(CapacityError) as caught:
        core.add(make_request(length=10))
    assert caught.value.retry_after_s == 4.0


def test_room_is_what_the_engine_takes_before_it_refuses():
    core = make_core(max_running_requests=1, max_queued_requests=3)
    for i in range(4):
        assert (core.room().limit, core.room().free) == (4, 4 - i)
        core.add(make_request(first=20 * i))
    assert core.room().free == 0
    with pytest.raises(CapacityError) as caught:
        core.add(make_request())
    assert core.room().retry_after_s == caught.value.retry_after_s


def test_no_room_where_one_token_more_would_be_too_many():
    core = make_core(max_running_requests=1, max_queued_tokens=20)
    core.add(make_request(length=19))
    assert core.room().free > 0
    core.add(make_request(length=1))
    assert core.room().free == 0
    with pytest.raises(CapacityError):
        core.add(make_request(length=1))
