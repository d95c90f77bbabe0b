"""Sampling for an NPU: rows come to the host only as far as their draws need them.

`Ops.sample` specifies a draw down to the order of its sums in double precision, which the device
doesn't have. So each row goes one of three ways, all of which give the CPU's answer:
- the largest logit, as it is, is found on the device;
- other rows bring down their largest logits, those that a bias or a penalty changes, and
  sums over the rest; `candidates.py` draws among these on the host;
- rows that this doesn't decide, and rows with log-probabilities, bring down all logits, for the
  kernel of the CPU backend.
The device only copies and compares logits on the way, but for the sums, whose error is allowed for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qwen3_a8w8.kernels.backend import HostArrays
from qwen3_a8w8.kernels.cpu.backend import CpuBackend
from qwen3_a8w8.kernels.npu.candidates import Candidates, RowSettings, adjust, choose
from qwen3_a8w8.kernels.npu.device import device_errors
from qwen3_a8w8.kernels.ops import SAMPLE_CONTROLS
from qwen3_a8w8.kernels.program import Program

FEW, MANY = 64, 1024
"""Largest logits that are brought down per row: few if every row keeps at most half as many."""
SUM_BLOCK = 512
"""Logits per sum on the device; see `candidates.REST_ERROR`."""
ON_DEVICE = -2
"""In place of an id: the device finds it."""

Controls = Mapping[str, NDArray[Any]]


@dataclass(slots=True)
class SampleCounts:
    """Rows by the way they went, and bytes that came to the host for them, since the start."""

    on_device: int = 0
    by_candidates: int = 0
    whole: int = 0
    num_bytes: int = 0

    def bring(self, tensor: Tensor) -> NDArray[Any]:
        """Copies a tensor to the host."""
        self.num_bytes += tensor.numel() * tensor.element_size()
        array: NDArray[Any] = tensor.cpu().numpy()
        return array


class NpuSampler:
    """An executable of the program `sample`.

    Args:
        program: with one node, `sample`.
        cpu: draws from whole rows; owned by the backend.
        counts: told about every row.
    """

    arena_bytes = 0

    def __init__(self, program: Program, cpu: CpuBackend, counts: SampleCounts) -> None:
        self._executable = cpu.lower(program)
        self._counter = None if program.active_count is None else program.active_count[0]
        node = program.nodes[0]
        self._logits = node.inputs[0].name
        names = zip(SAMPLE_CONTROLS, node.inputs[1:], strict=True)
        self._controls = {control: ref.name for control, ref in names}
        self._outputs = [ref.name for ref in node.outputs]
        rows = node.inputs[0].shape[0]
        self._by_row = {ref.name for ref in (*node.inputs, *node.outputs) if ref.shape[0] is rows}
        self._rows_dim = getattr(rows, "name", "")
        self._counts = counts

    def bind(self, constants: Mapping[str, object]) -> None:
        """There are none."""

    def run(self, args: Mapping[str, Tensor], dims: Mapping[str, int]) -> None:
        """Draws a token per live row."""
        self.run_with(args, dims, {})

    def run_with(
        self, args: Mapping[str, Tensor], dims: Mapping[str, int], host: HostArrays
    ) -> None:
        """See `HostReader`."""
        with device_errors("running sample"):
            self._run(args, dims, host)

    def close(self) -> None:
        """Frees scratch memory; may be called again."""
        self._executable.close()

    def _run(self, args: Mapping[str, Tensor], dims: Mapping[str, int], host: HostArrays) -> None:
        def on_host(name: str) -> NDArray[Any]:
            return host[name] if name in host else self._counts.bring(args[name])

        logits = args[self._logits]
        count = logits.shape[0] if self._counter is None else int(on_host(self._counter)[0])
        if count == 0:
            return
        controls = {control: on_host(name) for control, name in self._controls.items()}
        is_whole = controls["num_logprobs"][:count] >= 0
        is_plain = ~is_whole & _takes_largest(controls, count)
        ids = np.full(count, ON_DEVICE, np.int32)
        some = np.flatnonzero(~is_whole & ~is_plain).tolist()
        if some:
            for row, found in zip(
                some, self._among_candidates(logits, controls, some), strict=True
            ):
                if found is None:
                    is_whole[row] = True
                else:
                    ids[row] = found
        whole = np.flatnonzero(is_whole).tolist()
        if whole:
            ids[whole] = self._from_whole_rows(args, dims, controls, whole)
        self._counts.on_device += int(is_plain.sum())
        self._counts.by_candidates += int((~is_plain & ~is_whole).sum())
        self._counts.whole += len(whole)
        _write_ids(args[self._outputs[0]][:count], logits[:count], ids)

    def _among_candidates(
        self, logits: Tensor, controls: Controls, rows: list[int]
    ) -> list[int | None]:
        """The id drawn for each row, -1 if its logits aren't finite, None if not decided."""
        vocab = logits.shape[1]
        work = logits.index_select(0, torch.tensor(rows, device=logits.device))
        changed = [_changed_ids(controls, row) for row in rows]
        offsets = np.cumsum([0, *map(len, changed)])
        where = None
        raw: NDArray[Any] = np.zeros(0, np.float32)
        if offsets[-1]:
            flat = np.concatenate([ids + i * vocab for i, ids in enumerate(changed)])
            where = torch.from_numpy(flat).to(logits.device)
            raw = self._counts.bring(work.view(-1).index_select(0, where))
        is_finite = self._counts.bring(torch.isfinite(work).all(dim=1))
        for i, row in enumerate(rows):
            words = _mask_words(controls, row, vocab)
            if words is not None:
                allowed = _bits(torch.from_numpy(words).to(logits.device))[:vocab]
                work[i] = torch.where(allowed, work[i], -torch.inf)
        if where is not None:
            work.view(-1).index_fill_(0, where, -torch.inf)
        settings = [_settings(controls, row) for row in rows]
        values, ids, masses = self._largest_and_rest(work, settings)
        drawn: list[int | None] = []
        for i, row in enumerate(rows):
            if not is_finite[i]:
                drawn.append(-1)
                continue
            mine = raw[offsets[i] : offsets[i + 1]]
            adjusted = _adjusted(controls, row, changed[i], mine, vocab)
            bound = np.float32(-np.inf) if values.shape[1] == vocab else values[i, -1]
            is_sure = values[i] > bound
            all_ids = np.concatenate([changed[i], ids[i][is_sure].astype(np.int64)])
            order = np.argsort(all_ids)
            candidates = Candidates(
                all_ids[order],
                np.concatenate([adjusted, values[i][is_sure]])[order],
                bound,
                vocab - len(all_ids),
                float(masses[i]),
            )
            drawn.append(choose(candidates, settings[i]))
        return drawn

    def _largest_and_rest(
        self, work: Tensor, settings: Sequence[RowSettings]
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Largest logits of each row, their ids, and the mass of the rest relative to the last.

        Args:
            work: [R, vocab]; barred tokens and those that are on the host already are -inf.
            settings: of each row.
        """
        vocab = work.shape[1]
        is_few = all(0 < each.top_k <= FEW // 2 or each.temperature == 0 for each in settings)
        values, ids = torch.topk(work, min(FEW if is_few else MANY, vocab), dim=1)
        bound = values[:, -1:]
        masses = np.full(len(settings), np.nan)
        if not is_few and values.shape[1] < vocab:
            # A temperature of 0 has no masses, and nobody looks at them.
            temperatures = np.asarray([[each.temperature or 1] for each in settings], np.float32)
            scale = torch.from_numpy(temperatures).to(work.device)
            weights = torch.where(work <= bound, torch.exp((work - bound) / scale), 0.0)
            padded = torch.nn.functional.pad(weights, (0, -vocab % SUM_BLOCK))
            sums = padded.view(len(settings), -1, SUM_BLOCK).sum(dim=2)
            masses = self._counts.bring(sums).sum(axis=1, dtype=np.float64)
        return self._counts.bring(values), self._counts.bring(ids.int()), masses

    def _from_whole_rows(
        self,
        args: Mapping[str, Tensor],
        dims: Mapping[str, int],
        controls: Controls,
        rows: list[int],
    ) -> NDArray[Any]:
        """The CPU kernel's draws; log-probabilities are written where they were asked for."""
        logits = args[self._logits]
        index = torch.tensor(rows)
        on_device = index.to(logits.device)
        given: dict[str, Tensor] = {
            self._logits: torch.from_numpy(self._counts.bring(logits.index_select(0, on_device)))
        }
        for control, name in self._controls.items():
            array = controls[control]
            chosen = array[rows] if name in self._by_row else array
            given[name] = torch.from_numpy(np.ascontiguousarray(chosen))
        if self._counter is not None:
            given[self._counter] = torch.tensor([len(rows)], dtype=torch.int32)
        for name in self._outputs:
            like = args[name]
            given[name] = torch.zeros((len(rows), *like.shape[1:]), dtype=like.dtype)
        self._executable.run(given, {**dims, self._rows_dim: len(rows)})
        self._report(args, given, controls["num_logprobs"], rows)
        ids: NDArray[Any] = given[self._outputs[0]][:, 0].numpy()
        return ids

    def _report(
        self,
        args: Mapping[str, Tensor],
        found: Mapping[str, Tensor],
        num_logprobs: NDArray[Any],
        rows: list[int],
    ) -> None:
        """Writes log-probabilities, as many as a row has asked for."""
        _, logprobs, top_ids, top_logprobs = self._outputs
        for i, row in enumerate(rows):
            wanted = min(int(num_logprobs[row]), args[self._logits].shape[1])
            if wanted < 0 or int(found[self._outputs[0]][i, 0]) < 0:
                continue
            args[logprobs][row].copy_(found[logprobs][i])
            for name in (top_ids, top_logprobs):
                args[name][row, :wanted].copy_(found[name][i, :wanted])


def _takes_largest(controls: Controls, count: int) -> NDArray[np.bool_]:
    """Which rows only want the largest of their logits as they are."""
    live = {name: array[:count] for name, array in controls.items()}
    plain: NDArray[np.bool_] = (
        (live["temperature"] == 0)
        & (live["allowed_start"] < 0)
        & (live["bias_range"][:, 0] == live["bias_range"][:, 1])
        & (live["history_range"][:, 0] == live["history_range"][:, 1])
    )
    return plain


def _settings(controls: Controls, row: int) -> RowSettings:
    return RowSettings(
        controls["temperature"][row],
        int(controls["top_k"][row]),
        float(controls["top_p"][row]),
        float(controls["min_p"][row]),
        int(controls["seeds"][row]),
        int(controls["positions"][row]),
    )


def _list_of(controls: Controls, row: int, kind: str, values: str) -> tuple[NDArray[Any], ...]:
    begin, end = controls[f"{kind}_range"][row]
    return controls[f"{kind}_ids"][begin:end], controls[f"{kind}_{values}"][begin:end]


def _changed_ids(controls: Controls, row: int) -> NDArray[np.int64]:
    """Tokens with a bias or in the history: ascending and distinct."""
    biased, _ = _list_of(controls, row, "bias", "values")
    seen, _ = _list_of(controls, row, "history", "counts")
    return np.unique(np.concatenate([biased, seen]).astype(np.int64))


def _mask_words(controls: Controls, row: int, vocab: int) -> NDArray[np.int32] | None:
    start = int(controls["allowed_start"][row])
    return None if start < 0 else controls["allowed_words"][start : start + -(-vocab // 32)]


def _adjusted(
    controls: Controls, row: int, ids: NDArray[np.int64], raw: NDArray[Any], vocab: int
) -> NDArray[np.float32]:
    """Logits of the changed tokens with biases, masks and penalties."""
    bias_ids, bias_values = _list_of(controls, row, "bias", "values")
    history_ids, counts = _list_of(controls, row, "history", "counts")
    words = _mask_words(controls, row, vocab)
    is_barred = None if words is None else (words[ids // 32] >> (ids % 32) & 1) == 0
    return adjust(
        raw,
        biases=(np.searchsorted(ids, bias_ids), bias_values),
        is_barred=is_barred,
        history=(np.searchsorted(ids, history_ids), counts),
        penalties=(
            controls["repetition_penalty"][row],
            controls["presence_penalty"][row],
            controls["frequency_penalty"][row],
        ),
    )


def _bits(words: Tensor) -> Tensor:
    """[32 * W] bool, the lowest bit of each of [W] int32 first."""
    ones = [1 << bit if bit < 31 else -(1 << 31) for bit in range(32)]
    each = torch.tensor(ones, dtype=torch.int32, device=words.device)
    return (torch.bitwise_and(words.unsqueeze(1), each) != 0).view(-1)


def _write_ids(out: Tensor, logits: Tensor, ids: NDArray[np.int32]) -> None:
    """Writes [B, 8] ids: those of the host, and where it has none, of the largest logits."""
    if (ids == ON_DEVICE).all():
        out.copy_(_largest(logits))
        return
    rows = np.zeros(out.shape, np.int32)
    rows[:, 0] = ids
    given = torch.from_numpy(rows).to(logits.device)
    if (ids == ON_DEVICE).any():
        given = torch.where(given[:, :1] == ON_DEVICE, _largest(logits), given)
    out.copy_(given)


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
