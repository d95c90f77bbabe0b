"""Measures the whole engine on a checkpoint: prefill, then decoding in a batch of 1 or 16.

Two parts. A single prompt gives time to first token and prefill speed; then a batch whose
sequences have `context` tokens each decodes, and the steps that decode all of them without
any prefill give the time per token. The first such step isn't counted.

Floor of a decode step: the linears' weights and scales read once, or their multiply-adds
at the int8 peak if that takes longer; plus lm_head and the batch's keys and values read
once. Floor of a prefill: the same over the prompt, the multiply-adds counted for every
token, without keys and values. Limits and ratios as in `kernels.py`. Weights from a packed
file are also read by a plain loop, and the step has a second floor at that rate.
"""

from __future__ import annotations

import itertools
import random
import re
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qwen3_a8w8.bench.machine import Machine
from qwen3_a8w8.checkpoint.names import linear_weights
from qwen3_a8w8.config import EngineConfig, ModelConfig
from qwen3_a8w8.engine.engine import Engine
from qwen3_a8w8.engine.plan import Runner, RunnerCapabilities, StepPlan, StepResult
from qwen3_a8w8.engine.request import EngineRequest
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.errors import ConfigError
from qwen3_a8w8.experimental import INT8_LM_HEAD
from qwen3_a8w8.runner.sizing import kv_block_bytes
from qwen3_a8w8.text.structured import StructuredOutput

_STATUS = Path("/proc/self/status")
_ROLLUP = Path("/proc/self/smaps_rollup")
_NUM_PREFILLS = 3


@dataclass(frozen=True, slots=True)
class Workload:
    """The workload of a run.

    Attributes:
        batch_size: sequences that decode together, 1 or 16.
        prompt_tokens: length of the prompt that is timed separately.
        new_tokens: decode steps of the batch, at least 3.
        context_tokens: length of the batch's sequences before they decode.
    """

    batch_size: int
    prompt_tokens: int
    new_tokens: int
    context_tokens: int

    def __post_init__(self) -> None:
        """Checks ranges.

        Raises:
            ConfigError: a number is out of range.
        """
        for name, low in (("prompt_tokens", 1), ("new_tokens", 3), ("context_tokens", 1)):
            if getattr(self, name) < low:
                raise ConfigError(f"{name} is {getattr(self, name)}, expected at least {low}")

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max(self.prompt_tokens + 2, self.context_tokens + self.new_tokens + 1)

    def engine_config(self, base: EngineConfig) -> EngineConfig:
        """`base` with a cache of exactly the needed size."""
        blocks_per_seq = -(-self.longest // base.block_size)
        return replace(
            base,
            max_model_len=self.longest,
            num_kv_blocks=1 + (self.batch_size + 1) * blocks_per_seq,
            enable_prefix_caching=False,
        )


@dataclass(frozen=True, slots=True)
class _Step:
    num_prefilled: int
    num_rows: int
    start: float
    end: float
    device_s: float


class RecordingRunner:
    """Forwards everything to a runner and records start and end of each step."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.steps: list[_Step] = []

    @property
    def capabilities(self) -> RunnerCapabilities:
        """The runner's own."""
        return self._runner.capabilities

    def execute(self, plan: StepPlan) -> StepResult:
        """Runs and times a step."""
        start = time.perf_counter()
        result = self._runner.execute(plan)
        end = time.perf_counter()
        num_prefilled = sum(chunk.num_tokens for chunk in plan.prefill)
        num_rows = len(plan.decode.rows) if plan.decode is not None else 0
        self.steps.append(_Step(num_prefilled, num_rows, start, end, result.device_time_s))
        return result

    def prepare_grammar(self, structured: StructuredOutput) -> None:
        """Lets the runner compile a grammar."""
        self._runner.prepare_grammar(structured)

    def close(self) -> None:
        """Closes the runner."""
        self._runner.close()


def bench_engine(
    runner: Runner,
    config: EngineConfig,
    model: ModelConfig,
    machine: Machine,
    workload: Workload,
    weights: NDArray[np.uint8] | None = None,
) -> dict[str, Any]:
    """Runs a workload; closes the runner.

    Args:
        runner: warm, made with `workload.engine_config`.
        config: that configuration.
        model: the checkpoint's architecture.
        machine: the limits, measured again before and after.
        workload: what to run.
        weights: the packed file in memory if the weights come from one.

    Returns:
        The result's fields; times in seconds.
    """
    recorder = RecordingRunner(runner)
    engine = Engine(recorder, config)
    try:
        machine.measure()
        ttft_s = min(_first_token_s(engine, model, workload, i) for i in range(_NUM_PREFILLS))
        prefill_s = _prefill_s(recorder.steps)
        recorder.steps.clear()
        sampling = SamplingParams(
            temperature=0, max_tokens=workload.new_tokens + 1, ignore_eos=True
        )
        engine.generate_batch(
            [
                EngineRequest(_prompt(model, workload.context_tokens, 100 + i), sampling)
                for i in range(workload.batch_size)
            ]
        )
        resident = resident_bytes()
        machine.measure()
        weights_gbps = None if weights is None else machine.read_gbps_of(weights)
    finally:
        engine.close()
    steps = [
        step
        for step in recorder.steps
        if step.num_rows == workload.batch_size and step.num_prefilled == 0
    ]
    return {
        "bench": "engine",
        "use_mmap": config.use_mmap,
        "m": workload.batch_size,
        "prompt_tokens": workload.prompt_tokens,
        "context_tokens": workload.context_tokens,
        "new_tokens": workload.new_tokens,
        **_prefill_figures(model, config, machine, workload, ttft_s, prefill_s),
        **_decode_figures(model, config, machine, workload, steps, weights_gbps),
        "weight_bytes": _weight_bytes(model, config),
        "kv_cache_bytes": runner.capabilities.num_kv_blocks
        * kv_block_bytes(model, config.block_size, is_bf16=config.has_bf16_kv_cache),
        **resident,
    }


def resident_bytes() -> dict[str, int]:
    """Resident memory of this process, current and peak, and its share in huge pages.

    Includes mapped weights.
    """
    fields = _kib_fields(_STATUS)
    rollup = _kib_fields(_ROLLUP)
    return {
        "resident_bytes": fields["VmRSS"],
        "peak_resident_bytes": fields["VmHWM"],
        "huge_page_bytes": rollup["AnonHugePages"] + rollup["FilePmdMapped"],
    }


def _kib_fields(path: Path) -> dict[str, int]:
    """Lines "Name: 12 kB" of a file of /proc, in bytes."""
    found = re.findall(r"^(\w+):\s+(\d+) kB$", path.read_text(), re.MULTILINE)
    return {name: int(kib) << 10 for name, kib in found}


def _prompt(model: ModelConfig, length: int, seed: int) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(model.vocab_size) for _ in range(length))


def _first_token_s(engine: Engine, model: ModelConfig, workload: Workload, seed: int) -> float:
    request = EngineRequest(
        _prompt(model, workload.prompt_tokens, seed),
        SamplingParams(temperature=0, max_tokens=1, ignore_eos=True),
    )
    start = time.perf_counter()
    engine.generate([request])
    return time.perf_counter() - start


def _prefill_s(steps: list[_Step]) -> float:
    """Device seconds of the fastest of the equal prefills, however many chunks each has."""
    chunks = [step.device_s for step in steps if step.num_prefilled > 0]
    per_prompt = len(chunks) // _NUM_PREFILLS
    return min(
        sum(chunks[i : i + per_prompt]) for i in range(0, _NUM_PREFILLS * per_prompt, per_prompt)
    )


def _linear_bytes(model: ModelConfig) -> int:
    return sum(rows * width + 4 * rows for rows, width in linear_weights(model).values())


def _linear_macs(model: ModelConfig) -> int:
    return sum(rows * width for rows, width in linear_weights(model).values())


def _table_bytes(model: ModelConfig) -> int:
    return 2 * model.vocab_size * model.hidden_size


def _lm_head_bytes(model: ModelConfig, config: EngineConfig) -> int:
    if INT8_LM_HEAD in config.active_flags:
        return model.vocab_size * (model.hidden_size + 4)
    return _table_bytes(model)


def _weight_bytes(model: ModelConfig, config: EngineConfig) -> int:
    is_shared = model.tie_word_embeddings and INT8_LM_HEAD not in config.active_flags
    lm_head = 0 if is_shared else _lm_head_bytes(model, config)
    return _linear_bytes(model) + _table_bytes(model) + lm_head


def _prefill_figures(
    model: ModelConfig,
    config: EngineConfig,
    machine: Machine,
    workload: Workload,
    ttft_s: float,
    prefill_s: float,
) -> dict[str, float]:
    tokens = workload.prompt_tokens
    floor = machine.floor_s(_linear_bytes(model), tokens * _linear_macs(model))
    floor += machine.floor_s(_lm_head_bytes(model, config), 0)
    return {
        "ttft_s": ttft_s,
        "prefill_s": prefill_s,
        "prefill_tokens_per_s": tokens / prefill_s,
        "prefill_floor_s": floor,
        "prefill_roofline_ratio": floor / prefill_s,
    }


def _decode_figures(
    model: ModelConfig,
    config: EngineConfig,
    machine: Machine,
    workload: Workload,
    steps: list[_Step],
    weights_gbps: float | None,
) -> dict[str, float]:
    pairs = list(itertools.pairwise(steps))
    # From the end of a step to the end of the next: the time a client waits for a token.
    intervals = [later.end - earlier.end for earlier, later in pairs]
    gaps = [later.start - earlier.end for earlier, later in pairs]
    device = [later.device_s for _, later in pairs]
    tpot_s, best_s = statistics.median(intervals), min(intervals)
    # The context grows by one token per step; the middle step is their average.
    context = workload.context_tokens + (workload.new_tokens + 1) / 2
    token_bytes = kv_block_bytes(model, 1, is_bf16=config.has_bf16_kv_cache)
    kv_bytes = workload.batch_size * context * token_bytes
    linear_bytes, lm_head_bytes = _linear_bytes(model), _lm_head_bytes(model, config)
    macs = workload.batch_size * _linear_macs(model)
    floor = machine.floor_s(linear_bytes, macs) + machine.floor_s(lm_head_bytes + kv_bytes, 0)
    at_weights: dict[str, float] = {}
    if weights_gbps is not None:
        weights_floor = machine.floor_s(linear_bytes, macs, weights_gbps)
        weights_floor += machine.floor_s(lm_head_bytes + kv_bytes, 0, weights_gbps)
        at_weights = {
            "weights_read_gbps": weights_gbps,
            "weights_roofline_ratio": weights_floor / best_s,
        }
    median_floor = machine.median_floor_s(linear_bytes, macs)
    median_floor += machine.median_floor_s(lm_head_bytes + kv_bytes, 0)
    return {
        "steps": len(intervals),
        "tpot_s": tpot_s,
        "best_tpot_s": best_s,
        "tokens_per_s": workload.batch_size / statistics.mean(intervals),
        "device_step_s": statistics.median(device),
        "host_gap_s": statistics.median(gaps),
        "bytes_per_step": linear_bytes + lm_head_bytes + kv_bytes,
        "floor_s": floor,
        "roofline_ratio": floor / best_s,
        "median_roofline_ratio": median_floor / tpot_s,
        **at_weights,
    }
