"""Histograms of what requests meet with, on a clock that tests turn."""

import pytest

from qwen3_a8w8.engine.stats.request_stats import Histogram, one_two_five
from qwen3_a8w8.errors import EngineDeadError
from tests.engine.test_queue import Clock, make_core, make_request, step
from tests.support.fakes import FakeRunner


def test_bounds_go_in_steps_of_one_two_five_up_to_the_largest():
    assert one_two_five(0.001, 0.1) == (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
    assert one_two_five(5, 60) == (5, 10, 25, 50, 100)


def test_histogram_counts_a_bound_in_its_own_range():
    histogram = Histogram((1.0, 2.0))
    for value in (0.0, 1.0, 1.5, 2.0, 7.0):
        histogram.observe(value)
    histogram.observe(2.5, 2)
    assert histogram.counts == [2, 2, 3]
    assert list(histogram.cumulative()) == [(1.0, 2), (2.0, 4), (float("inf"), 7)]
    assert (histogram.count, histogram.total) == (7, 16.5)


def count_and_total(histogram):
    """Count and sum."""
    return histogram.count, pytest.approx(histogram.total)


def test_latencies_count_from_arrival_token_by_token_to_the_end():
    clock = Clock()
    core = make_core(clock=clock, max_running_requests=1)
    runner = FakeRunner(core.capabilities)
    core.add(make_request(length=5, max_tokens=3))
    core.add(make_request(first=20, length=7, max_tokens=1))
    for _ in range(4):
        clock.now_s += 3.0
        step(core, runner)
    assert core.num_active_sequences == 0
    requests = core.stats().requests
    # Tokens come after 3, 6 and 9 s; then the other sequence's one after 12 s.
    assert count_and_total(requests.ttft_s) == (2, 15.0)
    assert count_and_total(requests.itl_s) == (2, 6.0)
    assert count_and_total(requests.tpot_s) == (1, 3.0)
    assert count_and_total(requests.e2e_s) == (2, 21.0)
    assert count_and_total(requests.prompt_tokens) == (2, 12)
    assert count_and_total(requests.generation_tokens) == (2, 4)
    assert requests.num_generated_tokens == 4


def test_resumed_sequence_has_no_first_token_and_no_whole_time():
    clock = Clock()
    core = make_core(clock=clock)
    core.add(make_request(max_tokens=4, output_token_ids=(3, 4)))
    runner = FakeRunner(core.capabilities)
    for _ in range(2):
        clock.now_s += 1.0
        step(core, runner)
    requests = core.stats().requests
    assert (requests.ttft_s.count, requests.e2e_s.count) == (0, 0)
    assert count_and_total(requests.itl_s) == (1, 1.0)
    assert count_and_total(requests.generation_tokens) == (1, 4)
    assert requests.num_generated_tokens == 2


def test_aborted_sequence_counts_to_its_end_and_a_failed_one_does_not():
    clock = Clock()
    core = make_core(clock=clock)
    first, _ = core.add(make_request(max_tokens=9)) + core.add(make_request(first=20))
    clock.now_s += 2.0
    core.abort(first)
    core.fail_all(EngineDeadError("gone"))
    stats = core.stats()
    assert stats.num_finished == {"abort": 1, "error": 1}
    assert count_and_total(stats.requests.e2e_s) == (1, 2.0)
    assert count_and_total(stats.requests.generation_tokens) == (1, 0)
    assert stats.requests.tpot_s.count == 0


def test_snapshot_does_not_grow():
    clock = Clock()
    core = make_core(clock=clock)
    before = core.stats()
    core.add(make_request(max_tokens=1))
    step(core, FakeRunner(core.capabilities))
    assert (before.requests.ttft_s.count, before.counters.queue_times.count) == (0, 0)
    assert core.stats().requests.ttft_s.count == 1
