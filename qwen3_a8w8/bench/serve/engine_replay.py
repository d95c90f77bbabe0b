"""The requests of a run on the engine alone, in this process: what HTTP and Serve add to it.

A closed loop: as many requests at a time as the run had in flight, the next one when one has
ended. Times are taken where the runner's results come in, so that they are what a server that costs
nothing would show its clients: from submission to the end of the step that gave a request its
first token, and between such steps.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from qwen3_a8w8.bench.serve.metrics import Latencies, latencies
from qwen3_a8w8.bench.serve.run import Run
from qwen3_a8w8.bench.serve.settings import ServeBench
from qwen3_a8w8.bench.serve.stream import RequestOutput
from qwen3_a8w8.checkpoint.resolve import resolve_model
from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.engine.engine import Engine
from qwen3_a8w8.engine.plan import Runner, RunnerCapabilities, StepPlan, StepResult
from qwen3_a8w8.engine.request import EngineRequest, TokenEvent
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.errors import ConfigError
from qwen3_a8w8.runner.model_runner import ModelRunner
from qwen3_a8w8.text.generation_defaults import GenerationDefaults
from qwen3_a8w8.text.structured import StructuredOutput

MAX_ROWS = 16
"""Sequences that an engine decodes together."""


class TimedRunner:
    """Forwards to a runner and records when each sequence got its tokens.

    Attributes:
        token_times: seconds, by sequence id, one entry for each step that gave it tokens.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.token_times: dict[int, list[float]] = {}

    @property
    def capabilities(self) -> RunnerCapabilities:
        """The runner's own."""
        return self._runner.capabilities

    def execute(self, plan: StepPlan) -> StepResult:
        """Runs a step."""
        result = self._runner.execute(plan)
        now_s = time.perf_counter()
        for seq_id in {token.seq_id for token in result.sampled}:
            self.token_times.setdefault(seq_id, []).append(now_s)
        return result

    def prepare_grammar(self, structured: StructuredOutput) -> None:
        """Lets the runner compile a grammar."""
        self._runner.prepare_grammar(structured)

    def close(self) -> None:
        """Closes the runner."""
        self._runner.close()


@dataclass(slots=True)
class _Running:
    stream: Iterator[TokenEvent]
    start_s: float
    prompt_len: int
    seq_id: int = -1
    num_tokens: int = 0
    num_steps: int = 0


def compare(bench: ServeBench, run: Run) -> dict[str, Any]:
    """Runs a run's requests on the engine alone, and gives what the server added.

    Args:
        bench: the settings; a closed loop.
        run: of a server of ours.

    Raises:
        ConfigError: it isn't ours, or doesn't say where its model is.
        CheckpointError: the model isn't there on this machine.
    """
    if run.version is None or run.origin is None:
        raise ConfigError("the run has not been of a server of ours that names its model")
    concurrency = min(MAX_ROWS, bench.traffic.max_concurrency or MAX_ROWS)
    directory = resolve_model(run.origin)
    lengths = [
        len(ids) + request.output_len
        for ids, request in zip(run.prompt_token_ids, run.requests, strict=True)
    ]
    config = _engine_config(run.version, concurrency, max(lengths))
    sampling = _sampling(bench, directory)
    requests = [
        EngineRequest(ids, replace(sampling, max_tokens=request.output_len))
        for ids, request in zip(run.prompt_token_ids, run.requests, strict=True)
    ]
    runner = ModelRunner.load(str(directory), config)
    return overhead(latencies(run.outputs), replay(runner, config, requests, concurrency))


def check_comparable(bench: ServeBench) -> None:
    """Checks that the load is a closed loop that the engine alone can repeat.

    Raises:
        ConfigError: it isn't.
    """
    traffic = bench.traffic
    is_closed = traffic.request_rate == float("inf") and traffic.ramp_up_strategy is None
    if not is_closed or traffic.max_concurrency is None or traffic.max_concurrency > MAX_ROWS:
        raise ConfigError(
            f"--compare-engine needs --max-concurrency of 1 to {MAX_ROWS} and no request rate: the "
            "engine alone runs so many requests at a time, the next when one has ended"
        )


def _engine_config(version: Mapping[str, Any], concurrency: int, longest: int) -> EngineConfig:
    """An engine like the server's, as far as the server says it, with room for this load."""
    device = version.get("device") or {}
    flags = version.get("experimental") or {}
    config = EngineConfig(
        isa=device.get("isa"),
        num_threads=device.get("threads"),
        max_running_requests=concurrency,
        max_model_len=longest + 1,
        enable=tuple(name for name, flag in flags.items() if flag.get("enabled")),
    )
    blocks_per_seq = -(-(longest + 1) // config.block_size)
    return replace(config, num_kv_blocks=1 + (concurrency + 1) * blocks_per_seq)


def _sampling(bench: ServeBench, directory: Path) -> SamplingParams:
    defaults = GenerationDefaults.from_directory(directory)
    values: dict[str, Any] = {
        name: getattr(defaults, name)
        for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    }
    return SamplingParams(
        **values | bench.traffic.sampling_fields,
        ignore_eos=bench.ignores_eos,
        seed=bench.dataset.seed,
    )


def replay(
    inner: Runner, config: EngineConfig, requests: Sequence[EngineRequest], concurrency: int
) -> list[RequestOutput]:
    """Runs the requests; closes the runner.

    Args:
        inner: the runner, warm.
        config: that it was made with.
        requests: in the order in which they were sent.
        concurrency: requests at a time.

    Returns:
        An output for each request, in the order in which they ended.
    """
    runner = TimedRunner(inner)
    pending = deque(requests)
    outputs: list[RequestOutput] = []
    with closing(Engine(runner, config)) as engine:
        running: list[_Running] = []
        while pending or running:
            while pending and len(running) < concurrency:
                request = pending.popleft()
                stream = engine.stream(request)
                start_s = time.perf_counter()
                running.append(_Running(stream, start_s, len(request.prompt_token_ids)))
            # Each look makes a step only if nothing has come for that request since the last.
            for one in list(running):
                event = next(one.stream, None)
                if event is None:
                    running.remove(one)
                    # A step that was on its way when the sequence ended is none of its own.
                    outputs.append(_output(one, runner.token_times[one.seq_id][: one.num_steps]))
                else:
                    one.seq_id = event.seq_id
                    one.num_tokens += len(event.token_ids)
                    one.num_steps += bool(event.token_ids)
    return outputs


def _output(one: _Running, times_s: Sequence[float]) -> RequestOutput:
    return RequestOutput(
        start_s=one.start_s,
        prompt_len=one.prompt_len,
        ttft_s=times_s[0] - one.start_s,
        itl_s=[later - earlier for earlier, later in itertools.pairwise(times_s)],
        latency_s=times_s[-1] - one.start_s,
        output_len=one.num_tokens,
    )


def overhead(served: Latencies, alone: Sequence[RequestOutput]) -> dict[str, Any]:
    """What the server adds to the engine, from medians of the same requests.

    Args:
        served: latencies of the run over HTTP.
        alone: outputs of the engine alone.
    """
    engine = latencies(alone)
    ttft_s = (median(served.ttft_s or [0.0]), median(engine.ttft_s or [0.0]))
    tpot_s = (median(served.tpot_s or [0.0]), median(engine.tpot_s or [0.0]))
    return {
        "engine_completed": len(engine.e2el_s),
        "engine_median_ttft_ms": ttft_s[1] * 1e3,
        "engine_median_tpot_ms": tpot_s[1] * 1e3,
        "added_ttft_ms": (ttft_s[0] - ttft_s[1]) * 1e3,
        "added_tpot_ms": (tpot_s[0] - tpot_s[1]) * 1e3,
        "tpot_ratio": tpot_s[0] / tpot_s[1] if tpot_s[1] else None,
    }
