"""Draws a row's token among its largest logits, or says that they don't decide it.

`Ops.sample` is defined on a whole row: weights in float32, sums in double precision. Of a row only
its largest logits are here, and a bound on all others, so that each comparison of the definition
is made with a margin for what isn't known: the rounding of weights and sums, and the mass of the
others. Where a comparison falls within its margin there is no answer, and the whole row is
needed. An answer that is given is therefore the one that any sampler with the same logits
gives, whatever the order of its sums.

Knows numpy alone: no device, and no tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qwen3_a8w8.kernels.reference_sampling import uniform

MARGIN = 4e-6
"""Relative; over ten times what a float32 exp of the CPU kernels is off, twice: the two sides of a
comparison err apart."""
REST_ERROR = 2.0**-10
"""Relative error allowed to the device's sum over the tokens that aren't candidates. A sum of 512
float32 numbers in any order is off by 2**-14 at most, exp by far less."""
NEGLIGIBLE = -80.0
"""Exponent below which all tokens of a vocabulary together weigh less than any margin."""


@dataclass(frozen=True, slots=True)
class RowSettings:
    """Controls of one row that the draw itself needs; see `Ops.sample`."""

    temperature: np.float32
    top_k: int
    top_p: float
    min_p: float
    seed: int
    position: int


@dataclass(frozen=True, slots=True)
class Candidates:
    """What is known of a row.

    Attributes:
        ids: [C], ascending and distinct.
        logits: [C] float32, biases, masks and penalties applied; -inf bars a token.
        bound: no other token has a larger logit; -inf: the others are barred, or there are none.
        num_others: how many tokens aren't candidates.
        rest_mass: sum over these of exp((logit - bound) / temperature), with a relative error of at
            most `REST_ERROR`; NaN: not known.
    """

    ids: NDArray[np.int64]
    logits: NDArray[np.float32]
    bound: np.float32
    num_others: int
    rest_mass: float


def adjust(
    logits: NDArray[np.float32],
    *,
    biases: tuple[NDArray[Any], NDArray[Any]],
    is_barred: NDArray[np.bool_] | None,
    history: tuple[NDArray[Any], NDArray[Any]],
    penalties: tuple[np.float32, np.float32, np.float32],
) -> NDArray[np.float32]:
    """Steps 1 and 2 of `Ops.sample`, in the same float32 operations.

    Args:
        logits: [C] float32.
        biases: indices into `logits`, each at most once, and values.
        is_barred: [C]; None: no token is.
        history: indices into `logits`, each at most once, and occurrences.
        penalties: repetition, presence, frequency.
    """
    out: NDArray[np.float32] = logits.copy()
    out[biases[0]] += biases[1]
    if is_barred is not None:
        out[is_barred] = -np.inf
    where, counts = history
    repetition, presence, frequency = penalties
    values = out[where]
    values = np.where(values > 0, values / repetition, values * repetition)
    values -= counts.astype(np.float32) * frequency
    out[where] = np.where(counts > 0, values - presence, values)
    return out


def choose(row: Candidates, settings: RowSettings) -> int | None:
    """The token that `Ops.sample` draws, or None if the candidates don't decide it."""
    if row.ids.size == 0:
        return None
    top = row.logits.max()
    if not top > row.bound:  # another token may be the largest, or all are barred
        return None
    if settings.temperature == 0:
        return int(row.ids[np.argmax(row.logits)])
    with np.errstate(all="ignore"):
        return _draw(row, settings, top)


def _draw(row: Candidates, settings: RowSettings, top: np.float32) -> int | None:
    # Exponents are those of the definition, bit for bit; weights are off by a rounding.
    x: NDArray[np.float32] = np.divide(row.logits - top, settings.temperature, dtype=np.float32)
    x_bound = float((row.bound - top) / settings.temperature)
    floor = max(x_bound, NEGLIGIBLE) + MARGIN
    is_sure = x > floor
    low = _low_mass(row, x[~is_sure], x_bound)

    order = np.lexsort((row.ids, -x))
    order = order[: int(is_sure.sum())]  # the sure ones, largest first, lower ids first
    x_sorted = x[order].astype(np.float64)
    weights = np.exp(x_sorted)

    if settings.min_p > 0:
        distance = np.abs(weights - settings.min_p) <= MARGIN * settings.min_p
        if bool((distance & (x_sorted != 0)).any()):
            return None
        kept = int((weights >= min(settings.min_p, 1.0)).sum())
        if np.exp(floor) * (1 + MARGIN) < settings.min_p:
            low = (0.0, 0.0)
        else:
            low = (0.0, low[1])
    else:
        kept = len(order)
    top_k = settings.top_k if settings.top_k < len(row.ids) + row.num_others else 0
    if 0 < top_k <= kept:
        if not _is_clear_end(x_sorted, top_k, floor):
            return None
        kept, low = top_k, (0.0, 0.0)
    elif top_k > 0:
        low = (0.0, low[1])
    if settings.top_p < 1:
        nucleus = _nucleus(x_sorted, weights[:kept], floor, settings.top_p, low)
        if nucleus is None:
            return None
        kept, low = nucleus, (0.0, 0.0)
    u = uniform(settings.seed, settings.position)
    return _drawn(row.ids[order[:kept]], weights[:kept], u, low[1])


def _low_mass(row: Candidates, low: NDArray[np.float32], x_bound: float) -> tuple[float, float]:
    """Least and greatest weight of all tokens that aren't among the sure candidates."""
    known = float(np.exp(np.maximum(low, np.float32(-1e4)).astype(np.float64)).sum())
    if row.num_others == 0 or row.bound == -np.inf:
        return known * (1 - MARGIN), known * (1 + MARGIN)
    unit = float(np.exp(max(x_bound, -1e4)))
    if not np.isfinite(row.rest_mass):
        return known * (1 - MARGIN), known * (1 + MARGIN) + row.num_others * unit * (1 + MARGIN)
    rest = row.rest_mass * unit
    # Tokens far below the bound may have been rounded to nothing on the device.
    lost = row.num_others * float(np.exp(NEGLIGIBLE)) * unit
    return (
        known * (1 - MARGIN) + rest * (1 - REST_ERROR),
        known * (1 + MARGIN) + rest * (1 + REST_ERROR) + lost,
    )


def _is_clear_end(x_sorted: NDArray[np.float64], count: int, floor: float) -> bool:
    """Whether the first `count` exponents are the same ones in every correct sampler.

    All that aren't listed are at most `floor`.

    Equal exponents have equal weights, of which lower ids come first; exponents that nearly equal
    each other may change places.
    """
    last = x_sorted[count - 1]
    if last - MARGIN <= floor:
        return False
    is_near = np.abs(x_sorted - last) <= MARGIN
    return not is_near[count:].any() or bool((x_sorted[is_near] == last).all())


def _nucleus(
    x_sorted: NDArray[np.float64],
    weights: NDArray[np.float64],
    floor: float,
    top_p: float,
    low: tuple[float, float],
) -> int | None:
    """How many of the first weights reach top_p of all that are kept; None: not decided."""
    sums = np.cumsum(weights)
    if not sums.size:
        return None
    least, most = sums[-1] + low[0], sums[-1] + low[1]
    slack = MARGIN * most
    index = int(np.searchsorted(sums, top_p * most + slack))
    if index == len(sums):
        return None
    is_short = index == 0 or bool(sums[index - 1] < top_p * least - slack)
    return index + 1 if is_short and _is_clear_end(x_sorted, index + 1, floor) else None


def _drawn(
    ids: NDArray[np.int64], weights: NDArray[np.float64], u: float, others: float
) -> int | None:
    """The first id, in ascending order, at which the running sum exceeds u of the whole.

    Args:
        ids: of the kept candidates.
        weights: theirs.
        u: in [0, 1).
        others: most weight that further tokens may have, wherever their ids are.
    """
    if len(ids) == 1 and others == 0:
        return int(ids[0])
    by_id = np.argsort(ids)
    sums = np.cumsum(weights[by_id])
    if not sums.size:
        return None
    slack = MARGIN * (sums[-1] + others) + others
    wanted = u * sums[-1]
    index = int(np.searchsorted(sums, wanted + slack, side="right"))
    if index == len(sums):
        # Without others the last one takes what rounding leaves over.
        index -= 1
        if others > 0:
            return None
    if index > 0:
        is_short = bool(sums[index - 1] <= wanted - slack)
    else:
        is_short = others == 0 or wanted >= 2 * others  # ids below may be among the others
    return int(ids[by_id[index]]) if is_short else None
