"""Engines that emit tokens at once, so that only the serving around them is measured.

`InstantEngine` replaces the engines behind the HTTP routes in one process; `load_runner` returns
the runner of a whole application on Ray Serve. Tokens are ordinary words of the checkpoint's
vocabulary.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

from deployments.engine.replica import EngineReplica
from deployments.replicas.admission import Admission, Places
from deployments.replicas.failover import EngineLost
from deployments.replicas.report import ReplicaReport
from qwen3_a8w8.checkpoint.resolve import resolve_model
from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.engine.admission.queue_limit import Room
from qwen3_a8w8.engine.plan import RunnerCapabilities, SampledToken, StepPlan, StepResult
from qwen3_a8w8.engine.request import EngineRequest, TokenEvent
from qwen3_a8w8.text.tokenizer import Tokenizer

FIRST_WORD = 1000
NUM_WORDS = 500
BACKLOG_TOKENS = 8
"""Tokens that have piled up per event where a backlog is played."""


def make_capabilities(directory: Path) -> RunnerCapabilities:
    """Room for 16 sequences of 4,096 tokens; no token ends a sequence."""
    return RunnerCapabilities(
        decode_batch_sizes=(1, 16),
        prefill_chunk_tokens=512,
        max_prefill_seqs=16,
        block_size=32,
        num_kv_blocks=16 * 128 + 1,
        max_model_len=4096,
        vocab_size=Tokenizer.from_directory(directory).vocab_size,
        eos_token_ids=(),
        decode_step_s={1: 1e-6, 16: 1e-6},
        description={"device": "instant"},
    )


class InstantEngine:
    """The engines as the service sees them, without engines.

    With a backlog, each event carries several tokens, as after a reader that was away;
    without, every token is an event of its own and the other streams get their turn between.
    """

    def __init__(self, directory: Path, *, has_backlog: bool) -> None:
        self._capabilities = make_capabilities(directory)
        self._num_per_event = BACKLOG_TOKENS if has_backlog else 1
        self.admission = Admission(self._rooms)

    async def _rooms(self) -> list[Room]:
        return [Room(limit=1_000_000, free=1_000_000, retry_after_s=1.0)]

    async def stream(
        self, request: EngineRequest, places: Places | None = None
    ) -> AsyncGenerator[TokenEvent | EngineLost, None]:
        yield TokenEvent(seq_id=0)
        num_tokens = request.sampling.max_tokens or 1
        for start in range(0, num_tokens, self._num_per_event):
            await asyncio.sleep(0)
            stop = min(start + self._num_per_event, num_tokens)
            yield TokenEvent(
                seq_id=0,
                token_ids=tuple(FIRST_WORD + i % NUM_WORDS for i in range(start, stop)),
                finish_reason="length" if stop == num_tokens else None,
            )

    async def generate_batch(
        self, requests: list[EngineRequest], places: Places | None = None
    ) -> list[TokenEvent]:
        raise NotImplementedError(f"{len(requests)} requests: this engine streams only")

    async def capabilities(self) -> RunnerCapabilities:
        return self._capabilities

    async def reports(self, timeout_s: float) -> list[ReplicaReport]:
        return []

    async def check_ready(self, timeout_s: float) -> None:
        """Always ready."""


class InstantRunner:
    """Executes plans instantly; see `qwen3_a8w8.engine.plan.Runner`."""

    def __init__(self, capabilities: RunnerCapabilities) -> None:
        self._capabilities = capabilities

    @property
    def capabilities(self) -> RunnerCapabilities:
        return self._capabilities

    def execute(self, plan: StepPlan) -> StepResult:
        sampled = [
            (chunk.seq_id, chunk.start + chunk.num_tokens)
            for chunk in plan.prefill
            if chunk.is_sampled
        ]
        if plan.decode is not None:
            sampled += [(row.seq_id, row.position + 1) for row in plan.decode.rows]
        return StepResult(
            plan.step_id,
            tuple(
                SampledToken(seq_id, position, FIRST_WORD + position % NUM_WORDS)
                for seq_id, position in sampled
            ),
            device_time_s=1e-6,
        )

    def close(self) -> None:
        """Holds nothing."""


def load_runner(model: str, config: EngineConfig) -> InstantRunner:
    """The `runner_factory` of the measured application."""
    del config
    return InstantRunner(make_capabilities(resolve_model(model)))


class UncoalescedReplica(EngineReplica):
    """Sends every token as a message of its own, also when several have piled up."""

    async def start_stream(self, request: EngineRequest) -> AsyncGenerator[TokenEvent, None]:
        async for event in super().start_stream(request):
            last = len(event.token_ids) - 1
            if last < 1:
                yield event
                continue
            for index, token_id in enumerate(event.token_ids):
                yield TokenEvent(
                    event.seq_id,
                    (token_id,),
                    event.logprobs[index : index + 1],
                    finish_reason=event.finish_reason if index == last else None,
                    stop_token_id=event.stop_token_id if index == last else None,
                    num_cached_tokens=event.num_cached_tokens,
                )
