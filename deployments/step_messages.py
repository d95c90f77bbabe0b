"""What is sent of plans and results: pickles of plain columns, without what the other end knows.

A decode row's table of blocks is as long as its sequence, but from step to step it mostly stays
what it was. So only its new end is sent, and the receiver's plans share the tables that it has:
whoever checks or copies one sees by its identity that it is the old one. That a long context
costs no more than a short one needs both ends to see the same plans in the same order.
"""

from __future__ import annotations

import pickle
from typing import Any

from qwen3_a8w8.engine.plan import DecodeBatch, DecodeRow, SampledToken, StepPlan, StepResult

Table = tuple[int, ...]


class PlanEncoder:
    """The sender's end of one connection."""

    def __init__(self) -> None:
        self._tables: dict[int, Table] = {}  # of the live sequences that have decoded

    def encode(self, plan: StepPlan) -> bytes:
        """A plan as bytes."""
        tables = self._tables
        for seq_id in plan.release:
            tables.pop(seq_id, None)
        rest = (plan.release, plan.start, plan.prefill, plan.prefill_layers)
        if plan.decode is None:
            return _dump((plan.step_id, rest, None))
        tails: dict[int, tuple[int, Table]] = {}
        for row in plan.decode.rows:
            table, known = row.block_ids, tables.get(row.seq_id, ())
            if table is not known:
                num_kept = len(known) if table[: len(known)] == known else 0
                tails[row.seq_id] = (num_kept, table[num_kept:])
                tables[row.seq_id] = table
        seq_ids, positions, _, drafts = zip(*plan.decode.rows, strict=True)
        return _dump(
            (plan.step_id, rest, (plan.decode.batch_size, seq_ids, positions, drafts, tails))
        )


class PlanDecoder:
    """The receiver's end of one connection."""

    def __init__(self) -> None:
        self._tables: dict[int, Table] = {}

    def decode(self, message: bytes) -> StepPlan:
        """The plan that was sent."""
        step_id, (release, start, prefill, layers), batch = pickle.loads(message)
        tables = self._tables
        for seq_id in release:
            tables.pop(seq_id, None)
        decode = None
        if batch is not None:
            batch_size, seq_ids, positions, drafts, tails = batch
            for seq_id, (num_kept, tail) in tails.items():
                tables[seq_id] = (*tables.get(seq_id, ())[:num_kept], *tail)
            block_ids = [tables[seq_id] for seq_id in seq_ids]
            rows = zip(seq_ids, positions, block_ids, drafts, strict=True)
            decode = DecodeBatch(batch_size, tuple(map(DecodeRow._make, rows)))
        return StepPlan(step_id, release, start, prefill, layers, decode)


def encode_answer(answer: StepResult | Exception) -> bytes:
    """A result, or what was raised in its place, as bytes."""
    if isinstance(answer, Exception):
        return _dump(answer)
    columns = tuple(zip(*answer.sampled, strict=True))
    times = (answer.device_time_s, answer.prefill_time_s, answer.idle_s)
    return _dump((answer.step_id, columns, times, answer.prompt_tokens))


def decode_answer(message: bytes) -> StepResult | Exception:
    """What was sent."""
    answer = pickle.loads(message)
    if isinstance(answer, Exception):
        return answer
    step_id, columns, (device_s, prefill_s, idle_s), prompt_tokens = answer
    sampled = tuple(map(SampledToken._make, zip(*columns, strict=True)))
    return StepResult(step_id, sampled, device_s, prefill_s, idle_s, prompt_tokens)


def _dump(message: Any) -> bytes:
    return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
