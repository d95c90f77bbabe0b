"""When requests are sent: Poisson or gamma arrivals, at a constant or increasing rate.

Pure: seconds after the start, from settings and a generator. The process is that of
`vllm bench serve`: intervals are drawn from a gamma distribution with shape `burstiness` and mean
1 / rate, and at a constant rate scaled so that the last request is sent at n / rate exactly, which
removes the sampling error of the mean from the throughput.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from qwen3_a8w8.bench.serve.settings import TrafficSettings


def request_rates(traffic: TrafficSettings, num_requests: int) -> NDArray[np.float64]:
    """Requests per second that hold when each request is sent.

    Args:
        traffic: rate, or ramp-up.
        num_requests: how many.

    Returns:
        [num_requests] float64, infinite for "at once".
    """
    start, end = traffic.ramp_up_start_rps, traffic.ramp_up_end_rps
    if traffic.ramp_up_strategy is None or start is None or end is None:
        return np.full(num_requests, traffic.request_rate)
    progress = np.arange(num_requests) / max(1, num_requests - 1)
    if traffic.ramp_up_strategy == "linear":
        return np.asarray(start + (end - start) * progress, dtype=np.float64)
    return np.asarray(start * (end / start) ** progress, dtype=np.float64)


def arrival_times_s(
    traffic: TrafficSettings, num_requests: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Seconds after the start at which each request is sent.

    Args:
        traffic: rate or ramp-up, and burstiness.
        num_requests: how many.
        rng: draws the intervals.

    Returns:
        [num_requests] float64, ascending; zeros at an infinite rate.
    """
    mean_s = 1.0 / request_rates(traffic, num_requests)
    if not mean_s.any():
        return mean_s
    if math.isinf(traffic.burstiness):
        intervals_s = mean_s
    else:
        shape = traffic.burstiness
        intervals_s = rng.gamma(shape, mean_s / shape)
    times_s = np.cumsum(intervals_s)
    if traffic.ramp_up_strategy is None and times_s[-1] > 0:
        times_s *= num_requests / traffic.request_rate / times_s[-1]
    return times_s
