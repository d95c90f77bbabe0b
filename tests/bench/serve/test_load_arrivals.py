"""Arrival processes: their statistics, from fixed seeds."""

import math

import numpy as np
import pytest

from qwen3_a8w8.bench.serve.arrivals import arrival_times_s, request_rates
from qwen3_a8w8.bench.serve.settings import TrafficSettings

COUNT = 20_000


def arrivals(count=COUNT, seed=1, **settings):
    return arrival_times_s(TrafficSettings(**settings), count, np.random.default_rng(seed))


def test_infinite_rate_sends_everything_at_once():
    assert arrivals(5).tolist() == [0.0] * 5


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_intervals_are_gamma_distributed_with_the_rate_as_their_mean(burstiness):
    times_s = arrivals(request_rate=50.0, burstiness=burstiness)
    intervals_s = np.diff(times_s, prepend=0.0)
    assert times_s[-1] == pytest.approx(COUNT / 50.0)
    # A gamma distribution of shape k and mean m: variance m^2 / k, skewness 2 / sqrt(k).
    deviation = intervals_s - intervals_s.mean()
    assert intervals_s.var() == pytest.approx(0.02**2 / burstiness, rel=0.1)
    skewness = (deviation**3).mean() / intervals_s.std() ** 3
    assert skewness == pytest.approx(2 / math.sqrt(burstiness), rel=0.15)


def test_poisson_arrivals_have_as_many_per_second_as_their_variance():
    times_s = arrivals(request_rate=20.0)
    counts, _ = np.histogram(times_s, bins=np.arange(0, 1000, 1.0))
    assert counts.mean() == pytest.approx(20, rel=0.03)
    assert counts.var() == pytest.approx(20, rel=0.15)


def test_infinite_burstiness_is_a_constant_interval():
    times_s = arrivals(4, request_rate=2.0, burstiness=math.inf)
    assert times_s.tolist() == [0.5, 1.0, 1.5, 2.0]


def test_seed_decides_the_times():
    assert (arrivals(9, request_rate=3.0) == arrivals(9, request_rate=3.0)).all()
    assert (arrivals(9, request_rate=3.0) != arrivals(9, seed=2, request_rate=3.0)).any()


@pytest.mark.parametrize(
    ("strategy", "rates"), [("linear", [2, 4, 6, 8, 10]), ("exponential", [2, 4, 8, 16, 32])]
)
def test_ramp_up_goes_from_the_first_rate_to_the_last(strategy, rates):
    settings = {
        "ramp_up_strategy": strategy,
        "ramp_up_start_rps": rates[0],
        "ramp_up_end_rps": rates[-1],
        "burstiness": math.inf,
    }
    assert request_rates(TrafficSettings(**settings), 5) == pytest.approx(rates)
    assert np.diff(arrivals(5, **settings), prepend=0.0) == pytest.approx(1 / np.array(rates))
