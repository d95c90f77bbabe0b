"""The NPU's sampler on host tensors draws what the CPU's kernel draws from whole rows."""

import random

import pytest
import torch

from qwen3_a8w8.kernels.cpu.backend import CpuBackend
from qwen3_a8w8.kernels.npu.sampling import FEW, NpuSampler, SampleCounts
from tests.kernels.test_sample import _logits, sample

VOCAB = 20_000
DEFAULTS = {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
"""Of Qwen3's generation_config.json."""


class Sampling:
    """A backend whose programs run in the NPU's sampler; the tensors are the host's."""

    device = "cpu"

    def __init__(self, cpu):
        self.cpu = cpu
        self.counts = SampleCounts()

    def lower(self, program):
        return NpuSampler(program, self.cpu, self.counts)


@pytest.fixture(scope="module")
def cpu():
    backend = CpuBackend(num_threads=1)
    yield backend
    backend.close()


@pytest.fixture
def sampling(cpu):
    return Sampling(cpu)


def draws(backend, logits, **settings):
    return sample(backend, logits.clone(), **settings)


def equal(ours, theirs):
    assert ours.keys() == theirs.keys()
    return all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 3.0, 10.0])
@pytest.mark.parametrize(
    "settings",
    [
        DEFAULTS,
        {"temperature": 0.0},
        {"top_k": 1},
        {"top_k": 100, "temperature": 3.0},
        {"min_p": 0.3},
        {"min_p": 1.0},
        {"top_p": 0.9},
        {"top_p": 0.0},
        {"temperature": 0.01},
        {"top_k": 20, "num_logprobs": 3},
        {"top_k": 19_000},
    ],
    ids=str,
)
def test_draw_is_that_of_the_whole_row(cpu, sampling, spread, settings):
    logits = _logits(8, VOCAB, spread)
    seeds = list(range(8))
    ours = draws(sampling, logits, seeds=seeds, **settings)
    assert equal(ours, draws(cpu, logits, seeds=seeds, **settings))


def test_default_settings_bring_no_whole_row(sampling):
    for spread in (1.0, 3.0, 10.0):
        draws(sampling, _logits(16, VOCAB, spread), **DEFAULTS)
        draws(sampling, _logits(16, VOCAB, spread), temperature=0.7, min_p=0.2, top_p=0.9)
    assert sampling.counts.whole == 0


def test_equal_logits_at_the_bound_bring_the_whole_row(cpu, sampling):
    logits = torch.zeros(2, VOCAB)
    logits[1, : FEW - 1] = torch.arange(FEW - 1, 0, -1)
    ours = draws(sampling, logits, **DEFAULTS)
    assert equal(ours, draws(cpu, logits, **DEFAULTS))
    assert sampling.counts.whole == 1


def random_case(rng, num_rows):
    def some(low, high):
        return rng.sample(range(VOCAB), rng.randint(low, high))

    settings = {
        "temperature": [rng.choice([0.0, 0.05, 0.6, 1.0, 5.0]) for _ in range(num_rows)],
        "top_k": [rng.choice([0, 1, 5, 20, 100, 200]) for _ in range(num_rows)],
        "top_p": [rng.choice([0.0, 0.3, 0.95, 1.0]) for _ in range(num_rows)],
        "min_p": [rng.choice([0.0, 0.0, 0.1]) for _ in range(num_rows)],
        "repetition_penalty": [rng.choice([1.0, 1.3, 0.8]) for _ in range(num_rows)],
        "presence_penalty": [rng.choice([0.0, 1.5]) for _ in range(num_rows)],
        "frequency_penalty": [rng.choice([0.0, -0.5]) for _ in range(num_rows)],
        "seeds": [rng.randrange(2**63) for _ in range(num_rows)],
        "positions": [rng.randrange(4096) for _ in range(num_rows)],
    }
    biases = {
        row: {token: rng.choice([-float("inf"), -3.0, 5.0, 100.0]) for token in some(0, 300)}
        for row in range(num_rows)
        if rng.random() < 0.6
    }
    history = {
        row: {token: rng.randrange(4) for token in some(0, 600)}
        for row in range(num_rows)
        if rng.random() < 0.6
    }
    allowed = {row: some(1, 400) for row in range(num_rows) if rng.random() < 0.4}
    return {**settings, "biases": biases, "history": history, "allowed": allowed}


@pytest.mark.parametrize("seed", range(12))
def test_random_settings_draw_the_same(cpu, sampling, seed):
    rng = random.Random(seed)
    logits = _logits(16, VOCAB, rng.choice([0.5, 3.0, 8.0]), seed)
    # The likeliest tokens are those that a request changes: bias and history hit them often.
    top = torch.topk(logits, 50).indices
    case = random_case(rng, 16)
    for row in range(16):
        for changes in (case["biases"], case["history"]):
            if row in changes and rng.random() < 0.7:
                changes[row] |= {int(i): changes[row].get(int(i), 1) for i in top[row, ::2]}
    ours = draws(sampling, logits, **case)
    assert equal(ours, draws(cpu, logits, **case))
    assert sampling.counts.whole < 16


def test_row_that_is_not_finite_is_told_and_others_are_drawn(cpu, sampling):
    logits = _logits(3, VOCAB)
    logits[1, 77] = float("nan")
    ours = draws(sampling, logits, **DEFAULTS)
    assert ours["sampled_ids"][1, 0] == -1
    assert equal(ours, draws(cpu, logits, **DEFAULTS))


def test_idle_rows_are_not_looked_at(cpu, sampling):
    logits = _logits(4, VOCAB)
    logits[2:] = float("nan")
    settings = {"num_active": 2, **DEFAULTS}
    assert equal(draws(sampling, logits, **settings), draws(cpu, logits, **settings))
