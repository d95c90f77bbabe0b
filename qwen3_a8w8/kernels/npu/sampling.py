"""Sampling for an NPU: greedy rows on the device, all others by the CPU's own sampler.

`Ops.sample` specifies a draw down to the order of its sums in double precision, which the device
doesn't have. So a row that draws brings its logits to the host, where the CPU backend's kernel
gives the same token as on a CPU; a row that takes the largest logit doesn't.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from qwen3_a8w8.kernels.cpu.backend import CpuBackend
from qwen3_a8w8.kernels.program import Program


class NpuSampler:
    """An executable of the program `sample`.

    Args:
        program: with one node, `sample`.
        cpu: draws; owned by the backend.
    """

    arena_bytes = 0

    def __init__(self, program: Program, cpu: CpuBackend) -> None:
        self._executable = cpu.lower(program)
        self._counter = None if program.active_count is None else program.active_count[0]
        node = program.nodes[0]
        self._logits = node.inputs[0].name
        self._outputs = [ref.name for ref in node.outputs]

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
        host = logits.new_empty(logits.shape, device="cpu")
        host[:count] = logits[:count].cpu()
        self._executable.run({**small, **outputs, self._logits: host}, dims)
        for name, value in outputs.items():
            args[name].copy_(value)

    def close(self) -> None:
        """Frees scratch memory; may be called again."""
        self._executable.close()


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
