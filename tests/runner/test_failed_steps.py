"""Failing steps on a real model: the others' tokens and log-probabilities stay the same bits."""

import pytest

from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.engine.plan import StepResult
from qwen3_a8w8.engine.request import EngineRequest
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.errors import RequestFailedError
from qwen3_a8w8.experimental import PROMPT_LOOKUP
from qwen3_a8w8.kernels.cpu.backend import CpuBackend
from tests.support.checkpoints import make_random_qwen3
from tests.support.runners import make_runner
from tests.support.step_driver import StepDriver

BAD_TOKEN = 7


class FailingRunner:
    """A real runner that fails whenever a sequence with BAD_TOKEN in its prompt has 30 tokens.

    By then the step has been executed, so the runner has tokens that were never emitted.
    """

    def __init__(self, runner):
        self._runner = runner
        self.capabilities = runner.capabilities
        self._lengths = {}

    def execute(self, plan) -> StepResult:
        result = self._runner.execute(plan)
        for start in plan.start:
            self._lengths[start.seq_id] = len(start.prompt_token_ids) + len(start.output_token_ids)
            if BAD_TOKEN not in start.prompt_token_ids:
                self._lengths[start.seq_id] = -1_000_000
        for token in result.sampled:
            self._lengths[token.seq_id] += 1
        if any(self._lengths[token.seq_id] > 30 for token in result.sampled):
            raise FloatingPointError("not finite")
        return result


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    path = tmp_path_factory.mktemp("two-layers")
    make_random_qwen3(path, layers=2, seed=3)
    runner = make_runner(path, CpuBackend(), prefill_layers_per_dispatch=1, enable=(PROMPT_LOOKUP,))
    yield runner
    runner.close()


def make_request(i, is_bad=False):
    prompt = [*range(20 * i + 10, 20 * i + 17), *range(20, 30)]
    if is_bad:
        prompt[3] = BAD_TOKEN
    sampling = SamplingParams(
        temperature=1.0, seed=i, max_tokens=25, ignore_eos=True, logprobs=2, presence_penalty=0.5
    )
    return EngineRequest(tuple(prompt), sampling)


class Driver(StepDriver):
    """Collects log-probabilities too."""

    def __init__(self, runner, config):
        super().__init__(runner.capabilities, config)
        self.runner = runner
        self.logprobs = {}

    def take(self, event):
        super().take(event)
        self.logprobs.setdefault(event.seq_id, []).extend(event.logprobs)


def run(runner, requests, **settings):
    driver = Driver(runner, EngineConfig(**settings))
    ids = [driver.add(request) for request in requests]
    driver.run()
    assert driver.core.stats().num_blocks_in_use == 0
    return [(driver.tokens[i], driver.logprobs[i], driver.ends[i]) for i in ids]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"lookahead": 0},
        {"prefill_layers_per_dispatch": 1},
        {"enable_prefix_caching": False},
        {"enable": (PROMPT_LOOKUP,), "max_running_requests": 2},
    ],
    ids=str,
)
def test_bad_request_ends_at_its_step_and_nobody_elses_bits_change(runner, settings):
    requests = [make_request(i, is_bad=i in (2, 5)) for i in range(7)]
    undisturbed = run(runner, requests, lookahead=0)
    found = run(FailingRunner(runner), requests, **settings)
    for i, (got, expected) in enumerate(zip(found, undisturbed, strict=True)):
        if i in (2, 5):
            assert isinstance(got[2].error, RequestFailedError)
            # Of 17 + 13 tokens all are emitted; accepted draft tokens are lost with their step.
            assert got[0] == expected[0][: len(got[0])]
            assert len(got[0]) == 13 or "enable" in settings
        else:
            assert got[:2] == expected[:2]
            assert got[2].finish_reason == "length"
