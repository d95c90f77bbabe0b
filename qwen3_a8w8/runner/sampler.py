"""Sampler dispatches: from settings per row of logits to tokens and log-probabilities.

A row of logits either gives a sequence its next token, or the log-probabilities of a token that
is known: the sampler is then forced to draw it. The settings of sequences don't change, so their
columns are only rewritten when the sequences or their order change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qwen3_a8w8.engine.plan import PrefillChunk, PromptToken, SampledToken, TokenLogprobs
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.errors import EngineDeadError
from qwen3_a8w8.kernels.signature import FLOAT32, INT32, INT64
from qwen3_a8w8.runner.packing import GrowingInput, InputBlock
from qwen3_a8w8.runner.sequences import RunnerSequence, SamplingRow
from qwen3_a8w8.runner.worker import Worker, WorkerTensor


class Samples:
    """The sampler's outputs on the host.

    Attributes:
        ids: the token drawn for each live row; -1 if the logits weren't finite.
    """

    def __init__(self, host: Mapping[str, NDArray[Any]], num_rows: int) -> None:
        """Reads the ids.

        Args:
            host: outputs of `qwen3.sample` by name; without those of log-probabilities if no
                row has requested them.
            num_rows: live rows.
        """
        self._host = host
        self.ids: list[int] = host["sampled_ids"][:num_rows, 0].tolist()

    def logprobs(self, index: int, num_top: int) -> TokenLogprobs:
        """The log-probabilities of a row that has requested `num_top` alternatives."""
        host = self._host
        ids = host["top_ids"][index, :num_top].tolist()
        values = host["top_logprobs"][index, :num_top].tolist()
        return TokenLogprobs(float(host["logprobs"][index]), tuple(zip(ids, values, strict=True)))


def wanted_after(
    chunks: Sequence[PrefillChunk], sequences: Mapping[int, RunnerSequence]
) -> list[tuple[RunnerSequence, int | None]]:
    """The purpose of each row of logits after prefill, in the order of `pack_prefill`'s indices.

    Returns:
        Sequences, each with the position of a known token, or None for a new one.
    """
    wanted: list[tuple[RunnerSequence, int | None]] = []
    for chunk in chunks:
        sequence = sequences[chunk.seq_id]
        if chunk.has_prompt_logprobs:
            end = chunk.start + chunk.num_tokens + (not chunk.is_sampled)
            wanted += [(sequence, position) for position in range(chunk.start + 1, end)]
        if chunk.is_sampled:
            wanted.append((sequence, None))
    return wanted


def take(samples: Samples, index: int, sequence: RunnerSequence) -> SampledToken:
    """Reads a new token and appends it to its sequence.

    Raises:
        EngineDeadError: the logits aren't finite.
    """
    position = len(sequence.token_ids)
    token_id = samples.ids[index]
    if token_id < 0:
        raise _not_finite(sequence, position)
    sequence.append(token_id)
    error = None if sequence.grammar is None else sequence.grammar.error
    num_top = sequence.sampling.logprobs
    logprobs = None if num_top is None else samples.logprobs(index, num_top)
    return SampledToken(sequence.seq_id, position, token_id, logprobs, error)


def look_up(samples: Samples, index: int, sequence: RunnerSequence, position: int) -> PromptToken:
    """Reads the log-probabilities of the known token at a position.

    Raises:
        EngineDeadError: the logits aren't finite.
    """
    token_id = samples.ids[index]
    if token_id < 0:
        raise _not_finite(sequence, position)
    logprobs = samples.logprobs(index, sequence.sampling.prompt_logprobs or 0)
    return PromptToken(sequence.seq_id, position, token_id, logprobs)


def _not_finite(sequence: RunnerSequence, position: int) -> EngineDeadError:
    return EngineDeadError(
        f"the logits at position {position} of sequence {sequence.seq_id} aren't all "
        "finite; the checkpoint or a kernel is broken"
    )


_FLOATS = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
_INTS = ("top_k", "positions", "num_logprobs", "allowed_start")
_RANGES = ("bias_range", "history_range")


class Sampler:
    """The sample callable for the first `size` rows of the logits, with its inputs.

    Attributes:
        arrays: the controls of `Ops.sample` with fixed shapes, and num_active, on the host.
        lists: the controls of variable length; ranges and starts in `arrays` index them.
    """

    def __init__(
        self,
        worker: Worker,
        callable_id: int,
        size: int,
        *,
        logits: WorkerTensor,
        outputs: Mapping[str, WorkerTensor],
    ) -> None:
        """Allocates input memory.

        Args:
            worker: runs the callable.
            callable_id: of sample.
            size: rows, a compiled batch size.
            logits: [size, vocab] float32.
            outputs: those of `qwen3.sample`, [size, ...], by name.
        """
        self._worker = worker
        self._callable_id = callable_id
        self._inputs = InputBlock(
            worker,
            {
                "num_active": (INT32, (1,)),
                "seeds": (INT64, (size,)),
                **dict.fromkeys(_FLOATS, (FLOAT32, (size,))),
                **dict.fromkeys(_INTS, (INT32, (size,))),
                **dict.fromkeys(_RANGES, (INT32, (size, 2))),
            },
        )
        self.arrays = self._inputs.arrays
        self.lists = {
            "bias_ids": GrowingInput(worker, INT32),
            "bias_values": GrowingInput(worker, FLOAT32),
            "history_ids": GrowingInput(worker, INT32),
            "history_counts": GrowingInput(worker, INT32),
            "allowed_words": GrowingInput(worker, INT32),
        }
        self._host_inputs: dict[str, NDArray[Any]] = dict(self.arrays)
        self._note_lists()
        self._logits = logits
        self._outputs = outputs
        self._host_outputs = {name: worker.host_array(out) for name, out in outputs.items()}
        self._settings: list[SamplingParams] = []  # of the rows that the columns were written for
        self._has_lists = False
        self._has_logprobs = False
        self._prepare()

    def pack(self, rows: Sequence[SamplingRow]) -> None:
        """Writes the controls.

        Args:
            rows: in the order of the logits; the others are idle.
        """
        settings = [row.sampling for row in rows]
        packed = self._settings
        if len(settings) != len(packed) or not all(map(is_, settings, packed)):
            self._pack_settings(settings)
        self.arrays["positions"][: len(rows)] = [row.position for row in rows]
        has_lists = any(row.biases or row.history or row.allowed is not None for row in rows)
        if has_lists or self._has_lists:
            self._pack_lists(rows)
        self._has_lists = has_lists

    def upload(self) -> None:
        """Copies the packed controls to the device."""
        self._inputs.upload()

    def run(self) -> None:
        """Dispatches."""
        self._call()

    def samples(self) -> Samples:
        """The drawn tokens; read them before the next dispatch."""
        names = self._outputs if self._has_logprobs else ("sampled_ids",)
        return Samples({name: self._read(name) for name in names}, len(self._settings))

    def free(self) -> None:
        """Frees the input memory; idempotent."""
        self._inputs.free()
        for values in self.lists.values():
            values.free()

    def _read(self, name: str) -> NDArray[Any]:
        host = self._host_outputs[name]
        return self._outputs[name].to_continuous_tensor().cpu().numpy() if host is None else host

    def _note_lists(self) -> None:
        self._host_inputs.update((name, values.host) for name, values in self.lists.items())

    def _prepare(self) -> None:
        lists = {name: values.tensor for name, values in self.lists.items()}
        args = {**self._inputs.tensors, **lists, "logits": self._logits, **self._outputs}
        self._call = self._worker.prepare(self._callable_id, args, self._host_inputs)

    def _pack_settings(self, settings: list[SamplingParams]) -> None:
        arrays, count = self.arrays, len(settings)
        for array in arrays.values():
            array[:] = 0
        arrays["num_active"][0] = count
        for name in (*_FLOATS, "top_k"):
            arrays[name][:count] = [getattr(each, name) for each in settings]
        arrays["seeds"][:count] = [each.seed or 0 for each in settings]
        arrays["num_logprobs"][:count] = [
            -1 if each.logprobs is None else each.logprobs for each in settings
        ]
        arrays["allowed_start"][:] = -1
        self._has_logprobs = any(each.logprobs is not None for each in settings)
        self._settings = settings

    def _pack_lists(self, rows: Sequence[SamplingRow]) -> None:
        bias_range = self.arrays["bias_range"]
        history_range = self.arrays["history_range"]
        allowed_start = self.arrays["allowed_start"]
        bias_ids: list[int] = []
        bias_values: list[float] = []
        history_ids: list[int] = []
        history_counts: list[int] = []
        words: list[NDArray[Any]] = []
        num_words = 0
        for index, row in enumerate(rows):
            bias_range[index] = len(bias_ids), len(bias_ids) + len(row.biases)
            bias_ids.extend(row.biases)
            bias_values.extend(row.biases.values())
            history_range[index] = len(history_ids), len(history_ids) + len(row.history)
            history_ids.extend(row.history)
            history_counts.extend(row.history.values())
            allowed_start[index] = -1
            if row.allowed is not None:
                allowed_start[index] = num_words
                num_words += row.allowed.size
                words.append(row.allowed)
        lists: dict[str, Any] = {
            "bias_ids": bias_ids,
            "bias_values": bias_values,
            "history_ids": history_ids,
            "history_counts": history_counts,
            "allowed_words": np.concatenate(words) if words else [],
        }
        have_grown = [self.lists[name].write(values) for name, values in lists.items()]
        self._note_lists()
        if any(have_grown):
            self._prepare()
