"""What the engine says of its last steps and seconds, on a clock that tests turn."""

from qwen3_a8w8.engine.stats.activity import NUM_SECONDS, NUM_STEPS, NUM_WAITING
from tests.engine.test_queue import Clock, make_core, make_request, step
from tests.support.fakes import FakeRunner


def test_seconds_have_first_and_later_tokens_with_their_times():
    clock = Clock()
    core = make_core(clock=clock, max_running_requests=1)
    runner = FakeRunner(core.capabilities)
    start_s = clock.now_s
    core.add(make_request(length=5, max_tokens=3))
    core.add(make_request(first=20, length=7, max_tokens=1))
    for _ in range(4):
        clock.now_s += 3.0
        step(core, runner)
    # Tokens come after 3, 6 and 9 s; then the other sequence's one after 12 s.
    found = [
        (s.at_s - start_s, s.num_tokens, s.num_first, s.ttft_s, s.num_later, s.itl_s)
        for s in core.activity().seconds
    ]
    assert found == [
        (3, 1, 1, 3.0, 0, 0.0),
        (6, 1, 0, 0.0, 1, 3.0),
        (9, 1, 0, 0.0, 1, 3.0),
        (12, 1, 1, 12.0, 0, 0.0),
    ]
    clock.now_s += NUM_SECONDS - 5  # the first two are too old now
    assert [s.at_s - start_s for s in core.activity().seconds] == [9, 12]


def test_steps_are_those_of_the_runner_and_bounded():
    core = make_core()
    runner = FakeRunner(core.capabilities)
    core.add(make_request(length=40, max_tokens=2))
    while core.num_active_sequences:
        step(core, runner)
    plans = [plan for plan in runner.plans if plan.prefill or plan.decode]
    steps = core.activity().steps
    assert [one.step_id for one in steps] == [plan.step_id for plan in plans]
    assert [one.num_prefill_tokens for one in steps] == [
        sum(chunk.num_tokens for chunk in plan.prefill) for plan in plans
    ]
    assert sum(one.num_prefill_tokens for one in steps) == 40
    assert [one.decode_batch_size for one in steps if one.decode_batch_size] == [1]
    core.add(make_request(length=5, max_tokens=NUM_STEPS + 10))
    while core.num_active_sequences:
        step(core, runner)
    steps = core.activity().steps
    assert len(steps) == NUM_STEPS
    last = [plan.step_id for plan in runner.plans if plan.prefill or plan.decode][-NUM_STEPS:]
    assert [one.step_id for one in steps] == last


def test_sequences_are_listed_with_rows_and_the_queue_is_cut():
    core = make_core(max_running_requests=16, max_queued_requests=100)
    runner = FakeRunner(core.capabilities)
    for i in range(16 + NUM_WAITING + 3):
        core.add(make_request(first=2 + 8 * i, length=4, max_tokens=30))
    while not any(one.num_decode_rows == 16 for one in core.activity().steps):
        step(core, runner)
    activity = core.activity()
    assert [one.seq_id for one in activity.running] == list(range(16))
    assert [one.row for one in activity.running] == list(range(16))
    assert {one.state for one in activity.running} == {"decode"}
    assert activity.num_waiting == NUM_WAITING + 3
    assert activity.num_waiting_tokens == 4 * (NUM_WAITING + 3)
    assert [one.seq_id for one in activity.waiting] == list(range(16, 16 + NUM_WAITING))
    assert {one.state for one in activity.waiting} == {"waiting"}
    held = sum(one.num_blocks for one in activity.running)
    assert activity.num_blocks_in_use == held == core.stats().num_blocks_in_use
