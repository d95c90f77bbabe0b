"""`Ops.sample` for one row, in torch and Python integers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, ...]:
    """Ten rounds of philox4x32.

    Args:
        counter: four 32-bit words.
        key: two 32-bit words.

    Returns:
        Four 32-bit words.  Source: Salmon et al. 2011, "Parallel random numbers: as easy as
        1, 2, 3", section 3.3.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (
            (p1 >> 32) ^ c1 ^ k0,
            p1 & _MASK,
            (p0 >> 32) ^ c3 ^ k1,
            p0 & _MASK,
        )
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, position: int) -> float:
    """The draw u in [0, 1) of a (seed, position) pair; see `Ops.sample`, step 5."""
    seed &= 0xFFFFFFFFFFFFFFFF
    w0, w1, _, _ = philox4x32((position & _MASK, 0, 0, 0), (seed & _MASK, seed >> 32))
    return ((w0 << 21) ^ (w1 >> 11)) * 2.0**-53


def sample_row(
    logits: Tensor, controls: Mapping[str, Tensor], row: int
) -> tuple[int, tuple[float, Tensor, Tensor] | None]:
    """Draws the token of one row.

    Args:
        logits: [vocab] float32.
        controls: the control tensors of the whole batch, by name.
        row: the row's index in them.

    Returns:
        The token id (-1 if the logits aren't finite), and (logprob of the token, ids of the
        most likely tokens, their logprobs) if the row asks for log-probabilities.
    """
    if not bool(torch.isfinite(logits).all()):
        return -1, None
    token = _draw(_adjusted(logits, controls, row), controls, row)
    num_logprobs = int(controls["num_logprobs"][row])
    if num_logprobs < 0:
        return token, None
    logprobs = torch.log_softmax(logits, dim=-1)
    # A stable sort keeps lower ids first among equals; topk wouldn't promise it.
    order = torch.argsort(logits, descending=True, stable=True)[:num_logprobs]
    return token, (float(logprobs[token]), order.int(), logprobs[order])


def _adjusted(logits: Tensor, controls: Mapping[str, Tensor], row: int) -> Tensor:
    work = logits.clone()
    begin, end = controls["bias_range"][row].tolist()
    for j in range(begin, end):
        work[int(controls["bias_ids"][j])] += controls["bias_values"][j]
    allowed_start = int(controls["allowed_start"][row])
    if allowed_start >= 0:
        ids = torch.arange(work.numel())
        words = controls["allowed_words"][allowed_start + ids // 32]
        work[(words >> (ids % 32) & 1) == 0] = float("-inf")
    repetition = controls["repetition_penalty"][row]
    begin, end = controls["history_range"][row].tolist()
    for j in range(begin, end):
        token, count = int(controls["history_ids"][j]), controls["history_counts"][j]
        value = work[token]
        value = value / repetition if value > 0 else value * repetition
        value = value - count * controls["frequency_penalty"][row]
        if count > 0:
            value = value - controls["presence_penalty"][row]
        work[token] = value
    return work


def _draw(work: Tensor, controls: Mapping[str, Tensor], row: int) -> int:
    temperature = float(controls["temperature"][row])
    if temperature == 0.0:
        return int(torch.argmax(work))
    weights = torch.exp((work - work.max()) / temperature).double()
    weights[weights < float(controls["min_p"][row]) * weights.max()] = 0.0
    order = torch.argsort(weights, descending=True, stable=True)
    num_kept = int((weights > 0).sum())
    top_k = int(controls["top_k"][row])
    if top_k > 0:
        num_kept = min(num_kept, top_k)
    mass = torch.cumsum(weights[order[:num_kept]], dim=0)
    reached = torch.nonzero(mass >= float(controls["top_p"][row]) * mass[-1])
    kept = order[: int(reached[0]) + 1].sort().values
    running = torch.cumsum(weights[kept], dim=0)
    u = uniform(int(controls["seeds"][row]), int(controls["positions"][row]))
    above = torch.nonzero(running > u * running[-1])
    return int(kept[int(above[0])])
