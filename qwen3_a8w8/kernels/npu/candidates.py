"""Which tokens of a row can be drawn: what an NPU's sampler brings to the host.

`Ops.sample` defines a draw down to the order of its sums. Most rows are decided by a few of their
logits: a row with top_k by its largest, a row with min_p by those near the largest. `Candidates`
are a row's largest logits and those that the request changes; `are_enough` says whether any other
token could change the draw. Knows no device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Controls = Mapping[str, NDArray[Any]]

NUM_LARGEST = 256
"""Largest logits of each row that are looked at."""

_MARGIN = 1e-3
"""Of (difference of logits) / temperature: float32 errors of exp are below 1e-6 of that."""
_VANISHES = 120.0
"""exp(-120) is 0 in float32, denormals included."""
_IS_NORMAL = 80.0
"""exp(-80) is a normal float32, so that different arguments give different weights."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """The logits of one row that are known on the host, unchanged.

    Attributes:
        ids: [n] int64, each once.
        logits: [n] float32.
        bound: the largest that another logit may be; -inf if there is none.
    """

    ids: NDArray[np.int64]
    logits: NDArray[np.float32]
    bound: float


def changed_ids(controls: Controls, row: int) -> NDArray[np.int64]:
    """Ids whose logits a row's biases and penalties change, in order, each once."""
    parts = []
    for kind in ("bias", "history"):
        begin, end = controls[f"{kind}_range"][row]
        parts.append(controls[f"{kind}_ids"][begin:end])
    return np.unique(np.concatenate(parts)).astype(np.int64)


def may_be_enough(controls: Controls, row: int) -> bool:
    """Whether candidates can decide a row at all; if not, its logits aren't looked through.

    Log-probabilities need the sum over the vocabulary, and so does top_p without top_k or min_p.
    """
    if controls["num_logprobs"][row] >= 0 or controls["top_k"][row] > NUM_LARGEST // 2:
        return False
    is_greedy = controls["temperature"][row] == 0
    return bool(is_greedy or controls["top_k"][row] > 0 or controls["min_p"][row] > 0)


def are_enough(found: Candidates, controls: Controls, row: int) -> bool:
    """Whether the draw is the same whatever the other logits of the row are.

    Args:
        found: of the row; those that `controls` change must be among them.
        controls: of `Ops.sample`, by name.
        row: its index.
    """
    if found.bound == -math.inf:
        return True
    changed = np.sort(_changed(found, controls, row))[::-1]
    largest, temperature = float(changed[0]), float(controls["temperature"][row])
    if temperature == 0:
        return largest > found.bound
    below = (largest - found.bound) / temperature  # of the other tokens, at least
    min_p, top_k = float(controls["min_p"][row]), int(controls["top_k"][row])
    if below > _VANISHES or (min_p > 0 and below > _MARGIN - math.log(min(min_p, 1.0))):
        return True  # their weight is 0, or they are filtered out
    if not 0 < top_k <= changed.size:
        return False
    last = float(changed[top_k - 1])  # the last one that is kept
    is_above = (last - found.bound) / temperature > _MARGIN
    return is_above and (largest - last) / temperature < _IS_NORMAL


def _changed(found: Candidates, controls: Controls, row: int) -> NDArray[np.float32]:
    """The logits as step 1 and 2 of `Ops.sample` make them; barred ones are -inf."""
    logits: NDArray[np.float32] = found.logits.copy()
    place = {int(token_id): index for index, token_id in enumerate(found.ids)}
    begin, end = controls["bias_range"][row]
    for j in range(begin, end):
        logits[place[int(controls["bias_ids"][j])]] += controls["bias_values"][j]
    start = int(controls["allowed_start"][row])
    if start >= 0:
        words = controls["allowed_words"][start + found.ids // 32].astype(np.int64)
        logits[(words >> found.ids % 32) & 1 == 0] = -np.inf
    penalty = {
        name: np.float32(controls[f"{name}_penalty"][row])
        for name in ("repetition", "presence", "frequency")
    }
    begin, end = controls["history_range"][row]
    for j in range(begin, end):
        index, count = place[int(controls["history_ids"][j])], controls["history_counts"][j]
        value = logits[index]
        value = value / penalty["repetition"] if value > 0 else value * penalty["repetition"]
        value -= np.float32(count) * penalty["frequency"]
        logits[index] = value - penalty["presence"] if count > 0 else value
    return logits
