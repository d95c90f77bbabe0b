"""Sampling for an NPU: greedy rows on the device, all others by the CPU's own sampler.

`Ops.sample` specifies a draw down to the order of its sums in double precision, which the device
doesn't have. So a row that draws brings to the host the logits that can decide it
(`candidates.py`), or all of them where those aren't enough, and the CPU backend's kernel gives the
same token as on a CPU. If every row takes the largest logit as it is, none leaves the device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from qwen3_a8w8.kernels.cpu.backend import CpuBackend
from qwen3_a8w8.kernels.npu.candidates import (
    NUM_LARGEST,
    Candidates,
    Controls,
    are_enough,
    changed_ids,
    may_be_enough,
)
from qwen3_a8w8.kernels.program import Program

_UNKNOWN = -3e38
"""In place of logits that can't be drawn: finite, since others mean a broken model."""


class NpuSampler:
    """An executable of the program `sample`.

    Attributes:
        num_whole_rows: rows so far of which all logits went to the host.
    """

    arena_bytes = 0

    def __init__(self, program: Program, cpu: CpuBackend) -> None:
        """Makes the executable.

        Args:
            program: with one node, `sample`.
            cpu: draws; owned by the backend.
        """
        self._executable = cpu.lower(program)
        self._counter = None if program.active_count is None else program.active_count[0]
        node = program.nodes[0]
        self._logits = node.inputs[0].name
        self._outputs = [ref.name for ref in node.outputs]
        self._host = torch.empty(0)
        self.num_whole_rows = 0

    def bind(self, constants: Mapping[str, object]) -> None:
        """There are none."""

    def run(self, args: Mapping[str, Tensor], dims: Mapping[str, int]) -> None:
        """Draws a token per live row."""
        logits = args[self._logits]
        small = {name: tensor.cpu() for name, tensor in args.items() if name != self._logits}
        count = logits.shape[0] if self._counter is None else int(small[self._counter].item())
        if count == 0:
            return
        if _all_greedy(small, count):
            args[self._outputs[0]][:count] = _largest(logits[:count])
            return
        outputs = {name: small[name].clone() for name in self._outputs}
        if self._host.shape != logits.shape:
            self._host = torch.full(logits.shape, _UNKNOWN)
        try:
            self._bring(logits, {name: small[name].numpy() for name in small}, count)
            self._executable.run({**small, **outputs, self._logits: self._host}, dims)
        finally:
            self._host[:count] = _UNKNOWN
        for name, value in outputs.items():
            args[name].copy_(value)

    def close(self) -> None:
        """Frees scratch memory; may be called again."""
        self._executable.close()

    def _bring(self, logits: Tensor, controls: Controls, count: int) -> None:
        """Copies to the host what decides each of the first `count` rows."""
        rows = [row for row in range(count) if may_be_enough(controls, row)]
        whole = set(range(count)) - set(rows)
        for row, found in zip(rows, _candidates(logits, controls, rows), strict=True):
            if found is None or not are_enough(found, controls, row):
                whole.add(row)
            else:
                self._host[row, torch.from_numpy(found.ids)] = torch.from_numpy(found.logits)
        if whole:
            places = torch.tensor(sorted(whole))
            self._host[places] = logits[places.to(logits.device)].cpu()
            self.num_whole_rows += len(whole)


def _candidates(logits: Tensor, controls: Controls, rows: Sequence[int]) -> list[Candidates | None]:
    """The candidates of rows; None for a row whose logits aren't all finite."""
    if not rows:
        return []
    device, vocab = logits.device, logits.shape[1]
    places = torch.tensor(rows, device=device)
    chosen = logits[places]
    is_finite = torch.isfinite(chosen).all(dim=1).tolist()
    masked = _masked(chosen, controls, rows)
    largest, ids = (each.cpu().numpy() for each in torch.topk(masked, min(vocab, NUM_LARGEST)))
    changed = [changed_ids(controls, row) for row in rows]
    flat = np.concatenate([index * vocab + each for index, each in enumerate(changed)])
    values = np.empty(0, np.float32)
    if flat.size:
        values = chosen.reshape(-1)[torch.from_numpy(flat).to(device)].cpu().numpy()
    found: list[Candidates | None] = []
    for index, each in enumerate(np.split(values, np.cumsum([ids.size for ids in changed])[:-1])):
        if not is_finite[index]:
            found.append(None)
            continue
        is_known = np.isfinite(largest[index])  # not one that the mask bars
        all_ids = np.concatenate([changed[index], ids[index][is_known]]).astype(np.int64)
        all_logits = np.concatenate([each, largest[index][is_known]])
        unique, first = np.unique(all_ids, return_index=True)
        has_others = is_known.all() and vocab > largest.shape[1]
        bound = float(largest[index, -1]) if has_others else -math.inf
        found.append(Candidates(unique, all_logits[first], bound))
    return found


def _masked(chosen: Tensor, controls: Controls, rows: Sequence[int]) -> Tensor:
    """Rows of logits, -inf where their masks bar tokens."""
    starts = controls["allowed_start"][list(rows)]
    if (starts < 0).all():
        return chosen
    vocab, device = chosen.shape[1], chosen.device
    num_words = -(-vocab // 32)
    words = np.full((len(rows), num_words), -1, np.int32)
    for index, start in enumerate(starts):
        if start >= 0:
            words[index] = controls["allowed_words"][start : start + num_words]
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, :vocab]
    is_barred = torch.from_numpy(bits == 0).to(device)
    return torch.where(is_barred, torch.full_like(chosen, -math.inf), chosen)


def _all_greedy(controls: Mapping[str, Tensor], count: int) -> bool:
    """Whether rows only want the largest of their logits as they are."""
    live = {name: tensor[:count] for name, tensor in controls.items()}
    return bool(
        (live["temperature"] == 0).all()
        and (live["num_logprobs"] < 0).all()
        and (live["allowed_start"] < 0).all()
        and (live["bias_range"][:, 0] == live["bias_range"][:, 1]).all()
        and (live["history_range"][:, 0] == live["history_range"][:, 1]).all()
    )


def _largest(logits: Tensor) -> Tensor:
    """Lowest id of the largest logit of each row, [B, 8] int32; -1 if a row isn't all finite."""
    vocab = logits.shape[1]
    ids = torch.arange(vocab, dtype=torch.int32, device=logits.device)
    is_largest = logits == logits.amax(dim=1, keepdim=True)
    first = torch.where(is_largest, ids, torch.full_like(ids, vocab)).amin(dim=1)
    is_finite = torch.isfinite(logits).all(dim=1)
    rows = torch.zeros(logits.shape[0], 8, dtype=torch.int32, device=logits.device)
    rows[:, 0] = torch.where(is_finite, first, torch.full_like(first, -1))
    return rows
