"""Fakes below the HTTP routes: an engine in this process, and a runner factory for Serve."""

import asyncio
import os
import signal
from contextlib import aclosing
from pathlib import Path

from deployments.engine.batch_router import BatchRouter
from deployments.ingress.generation import split_request
from deployments.replicas.admission import Admission
from deployments.replicas.failover import resumed_stream
from deployments.replicas.failover_log import FailoverLog
from deployments.replicas.report import ReplicaActivity, ReplicaReport
from deployments.settings import FailoverSettings
from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.engine.core import EngineCore
from qwen3_a8w8.engine.plan import RunnerCapabilities, execute_step
from qwen3_a8w8.engine.request import EngineRequest, TokenEvent
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.errors import EngineDeadError, StepFailedError
from qwen3_a8w8.text.generation_defaults import GenerationDefaults
from qwen3_a8w8.text.tokenizer import Tokenizer
from tests.support.fakes import FakeRunner, expected_outputs, make_capabilities
from tests.support.step_gate import GatedRunner, StepGate

FAKE_RUNNER = "tests.support.fake_deployment:load_fake_runner"


def text_capabilities(directory: Path, **changes) -> RunnerCapabilities:
    """Capabilities of a fake model that has the vocabulary of a tokenizer directory."""
    values = {
        "vocab_size": Tokenizer.from_directory(directory).vocab_size,
        "eos_token_ids": GenerationDefaults.from_directory(directory).eos_token_ids,
        "num_kv_blocks": 129,
        "max_model_len": 256,
    }
    return make_capabilities(**(values | changes))


POISON_SEED = 666
"""A request with this seed makes its step fail once it has 20 tokens."""
LETHAL_SEED = 667
"""And one with this seed ends the actor's process."""


class CrashingRunner(FakeRunner):
    """Ends its process in the middle of a request with LETHAL_SEED."""

    def _known(self, seq_id):
        known = super()._known(seq_id)
        if known.start.sampling.seed == LETHAL_SEED and len(known.token_ids) >= 20:
            os.kill(os.getpid(), signal.SIGKILL)
        return known


def load_fake_runner(model: str, config: EngineConfig) -> GatedRunner:
    """A runner factory; `model` is a directory with tokenizer files, and with the gate."""
    del config
    runner = CrashingRunner(text_capabilities(Path(model)))
    runner.poison = {POISON_SEED: 20}
    return GatedRunner(runner, StepGate(Path(model)))


def expected_tokens(
    capabilities: RunnerCapabilities, prompt_ids: list[int], sampling: SamplingParams
) -> list[list[int]]:
    """Undisturbed output of each of the `n` sequences of a seeded prompt."""
    requests = split_request(prompt_ids, sampling, sampling.seed)
    return [expected_outputs(request, capabilities)[0] for request in requests]


class FakeEngine:
    """The engines as the service sees them, in this process and without Ray."""

    def __init__(self, capabilities: RunnerCapabilities, config: EngineConfig | None = None):
        self.runner = FakeRunner(capabilities)
        self.core = EngineCore(capabilities, config or EngineConfig())
        self.router: BatchRouter | None = None
        self.admission = Admission(self._rooms)
        self.failovers = FailoverLog()

    async def _rooms(self):
        return [self.core.room()]

    def _send(self, plan) -> None:
        """The answer comes once everything that can run has run."""
        asyncio.get_running_loop().call_soon(self._answer, plan)

    def _answer(self, plan) -> None:
        try:
            answer = execute_step(self.runner, plan)
        except StepFailedError as error:
            answer = error
        self.router.take(answer)

    def _running(self) -> BatchRouter:
        if self.router is None:
            self.router = BatchRouter(self.core, self._send)
        return self.router

    async def _open(self, request: EngineRequest):
        router = self._running()
        stream = router.submit(request)
        try:
            yield TokenEvent(stream.seq_id)
            async for event in stream:
                yield event
        finally:
            router.abort(stream)

    async def stream(self, request: EngineRequest, places=None):
        settings = FailoverSettings(max_resumes=0, timeout_s=120)
        with self.admission.counted(1, places) as accepted:
            async with aclosing(resumed_stream(self._open, request, settings)) as events:
                async for event in events:
                    accepted()
                    yield event

    async def generate_batch(self, requests, places=None):
        with self.admission.counted(len(requests), places):
            streams = self._running().submit_batch(requests)
            return [await stream.whole() for stream in streams]

    async def capabilities(self) -> RunnerCapabilities:
        return self.core.capabilities

    async def reports(self, timeout_s: float) -> list[ReplicaReport]:
        return [ReplicaReport("fake#1", 1, 2, self.core.stats())]

    async def activities(self, timeout_s: float) -> list[ReplicaActivity]:
        capabilities = self.core.capabilities
        return [
            ReplicaActivity(
                "fake#1",
                capabilities.decode_batch_sizes,
                capabilities.max_model_len,
                self.core.activity(),
            )
        ]

    async def check_ready(self, timeout_s: float) -> None:
        if self.core.error is not None:
            raise EngineDeadError(str(self.core.error))

    async def close(self) -> None:
        if self.router is not None:
            self.router.close()
