"""The process that owns a device: a thin shell over a `Runner`.

Plans come over a socket (`step_channel.py`) and are executed strictly in the order they were
sent, on one thread. Ray's calls are for the rest: `ping` and `prepare_grammar` have threads
of their own, so that they answer while a step runs. Decides nothing.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

import ray

from deployments.engine.step_channel import StepServer
from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.engine.plan import Runner, RunnerCapabilities, StepPlan, StepResult, execute_step
from qwen3_a8w8.errors import ConfigError, EngineDeadError
from qwen3_a8w8.text.structured import StructuredOutput

CONTROL_GROUP = "control"
GRAMMAR_GROUP = "grammar"
NUM_GRAMMAR_CALLS = 16
"""Calls that may wait for a grammar at the same time; few of them compute."""

logger = logging.getLogger(__name__)


def load_factory(path: str) -> Callable[[str, EngineConfig], Runner]:
    """The callable behind "module:attribute".

    Raises:
        ConfigError: the module or the attribute doesn't exist.
    """
    module_name, _, attributes = path.partition(":")
    try:
        target: Any = importlib.import_module(module_name)
        for name in attributes.split("."):
            target = getattr(target, name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"runner_factory {path!r} can't be imported: {error}") from error
    factory: Callable[[str, EngineConfig], Runner] = target
    return factory


class NpuActor:
    """Runs a model on one device; wrapped into a Ray actor by `RemoteNpuActor`.

    It has `max_restarts=0`: its state is its sequences, so it shares the fate of the replica
    that created it.
    """

    def __init__(self, model: str, config: EngineConfig, runner_factory: str) -> None:
        self._model = model
        self._config = config
        self._runner_factory = runner_factory
        self._runner: Runner | None = None
        self._num_steps = 0
        self._lock = threading.Lock()  # a step and the runner's end come on different threads
        self._server: StepServer | None = None

    def start(self) -> RunnerCapabilities:
        """Loads and warms up; minutes for a large model.

        Raises:
            ConfigError: the settings can't be used.
            CheckpointError: the model can't be read.
            KernelUnavailableError: the device asked for can't run here.
        """
        self._runner = load_factory(self._runner_factory)(self._model, self._config)
        # What is loaded stays: the collector needn't go through it while steps run.
        gc.collect()
        gc.freeze()
        return self._runner.capabilities

    def listen(self) -> str:
        """Listens for plans; returns the path of the socket that one batch router connects to."""
        self._server = StepServer(self.execute)
        return self._server.path

    def execute(self, plan: StepPlan) -> StepResult:
        """Runs one step and blocks until its results are in.

        Raises:
            StepFailedError: the runner raised; the log has the traceback.
            EngineDeadError: `start` hasn't succeeded, or the actor is closed.
        """
        with self._lock:
            if self._runner is None:
                raise EngineDeadError("the actor has no runner; call start first")
            result = execute_step(self._runner, plan)
            self._num_steps += 1
        return result

    @ray.method(concurrency_group=GRAMMAR_GROUP)
    def prepare_grammar(self, structured: StructuredOutput) -> None:
        """Compiles the grammar of a request that is about to be admitted, while steps run.

        Raises:
            InvalidRequestError: the grammar can't be used.
            EngineDeadError: `start` hasn't succeeded, or the actor is closed.
        """
        runner = self._runner  # not behind the lock, which is a step's while that runs
        if runner is None:
            raise EngineDeadError("the actor has no runner; call start first")
        runner.prepare_grammar(structured)

    @ray.method(concurrency_group=CONTROL_GROUP)
    def ping(self) -> dict[str, int]:
        """Process id and number of steps done; answers while a step runs."""
        return {"pid": os.getpid(), "num_steps": self._num_steps}

    def close(self) -> None:
        """Releases the device, after the step that runs; may be called again."""
        if self._server is not None:
            self._server.close()
        with self._lock:
            runner, self._runner = self._runner, None
            if runner is not None:
                runner.close()


_OPTIONS: dict[str, Any] = {
    "max_restarts": 0,
    "max_task_retries": 0,
    "concurrency_groups": {CONTROL_GROUP: 1, GRAMMAR_GROUP: NUM_GRAMMAR_CALLS},
}
RemoteNpuActor = ray.remote(**_OPTIONS)(NpuActor)
