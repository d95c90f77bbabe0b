"""Whatever way a row goes, its token is the CPU sampler's; and most rows stay on the device."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qwen3_a8w8.config import MAX_LOGPROBS, TOKENS_PER_ROW
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.kernels.backend import Compiler
from qwen3_a8w8.kernels.cpu.backend import CpuBackend
from qwen3_a8w8.kernels.signature import FLOAT32, INT32
from qwen3_a8w8.model import qwen3
from qwen3_a8w8.runner.sampler import Sampler
from qwen3_a8w8.runner.sequences import SamplingRow
from qwen3_a8w8.runner.worker import Worker
from qwen3_a8w8.text.thinking_tokens import mask_of

VOCAB = 5000
ROWS = 16
OUTPUTS = {
    "sampled_ids": ((ROWS, TOKENS_PER_ROW), INT32),
    "logprobs": ((ROWS,), FLOAT32),
    "top_ids": ((ROWS, MAX_LOGPROBS), INT32),
    "top_logprobs": ((ROWS, MAX_LOGPROBS), FLOAT32),
}


class Rig:
    """The runner's sampler over a backend, as `DeviceModel` sets it up."""

    def __init__(self, backend, *, is_host_memory):
        dims = {"VOCAB": VOCAB}
        self.backend = backend
        self.worker = Worker(backend.device, is_host_memory=is_host_memory)
        compiled = Compiler(backend).compile(qwen3.sample, dims)
        compiled.bind({})
        self.logits = self.worker.alloc((ROWS, VOCAB), FLOAT32)
        self.outputs = {n: self.worker.alloc(*what) for n, what in OUTPUTS.items()}
        self.sampler = Sampler(
            self.worker,
            self.worker.register(compiled),
            ROWS,
            logits=self.logits,
            outputs=self.outputs,
        )

    def sample(self, logits, rows):
        self.worker.upload(self.logits, logits)
        self.sampler.pack(rows)
        self.sampler.upload()
        self.sampler.run()
        samples = self.sampler.samples()
        reported = [
            samples.logprobs(i, row.sampling.logprobs)
            for i, row in enumerate(rows)
            if row.sampling.logprobs is not None and samples.ids[i] >= 0
        ]
        return samples.ids, reported


@pytest.fixture(scope="module")
def rigs():
    from qwen3_a8w8.kernels.npu.backend import NpuBackend

    npu, cpu = NpuBackend(num_threads=1), CpuBackend(num_threads=1)
    yield Rig(npu, is_host_memory=False), Rig(cpu, is_host_memory=True)
    npu.close()
    cpu.close()


def logits_of(seed, spread, *, is_bf16=True):
    gen = torch.Generator().manual_seed(seed)
    logits = torch.randn(ROWS, VOCAB, generator=gen) * spread
    return (logits.bfloat16().float() if is_bf16 else logits).numpy()


TOKENS = st.integers(0, VOCAB - 1)
SAMPLING = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.0, 0.3, 0.7, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 20, 20, 100, 3000]),
    top_p=st.sampled_from([0.0, 0.5, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.0, 0.05, 1.0]),
    seed=st.integers(0, 2**63 - 1),
    presence_penalty=st.sampled_from([0.0, 1.5, -2.0]),
    frequency_penalty=st.sampled_from([0.0, 0.3, -0.3]),
    repetition_penalty=st.sampled_from([1.0, 1.1, 0.5, 10.0]),
    logprobs=st.sampled_from([None, None, None, 0, 5]),
)
BIASES = st.dictionaries(
    TOKENS, st.sampled_from([-np.inf, -100.0, -1.5, 2.0, 100.0, 1e30]), max_size=5
)
HISTORY = st.dictionaries(TOKENS, st.integers(0, 9), max_size=30)
MASKS = st.none() | st.sets(TOKENS, min_size=1, max_size=2000).map(lambda s: mask_of(s, VOCAB))
SAMPLED_ROWS = st.lists(
    st.builds(SamplingRow, SAMPLING, st.integers(0, 40000), BIASES, HISTORY, MASKS),
    min_size=1,
    max_size=ROWS,
)


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    rows=SAMPLED_ROWS,
    seed=st.integers(0, 99),
    spread=st.sampled_from([0.1, 3.0, 8.0]),
    data=st.data(),
)
def test_every_row_gets_the_cpu_samplers_token_and_logprobs(rigs, rows, seed, spread, data):
    logits = logits_of(seed, spread)
    # What a bias or a penalty changes are mostly the likely tokens.
    likely = np.argsort(-logits, axis=1)[:, :8]
    for i, row in enumerate(rows):
        picked = data.draw(st.sets(st.sampled_from(likely[i].tolist()), max_size=6))
        rows[i] = row._replace(history={**row.history, **dict.fromkeys(picked, 2)})
    if data.draw(st.booleans()):
        logits[0, data.draw(TOKENS)] = np.nan
    npu, cpu = rigs
    assert npu.sample(logits, rows) == cpu.sample(logits, rows)


def plain(sampling, **more):
    return [SamplingRow(replace(sampling, seed=i, **more), 7 * i, {}, {}) for i in range(ROWS)]


GREEDY = SamplingParams(temperature=0.0)
CHAT = SamplingParams(temperature=0.6, top_k=20, top_p=0.95)


@pytest.fixture
def counted(rigs):
    """Samples, and says what it brought to the host: (rows on the device, by candidates, whole,
    bytes per row)."""

    def run(rows, logits=None):
        npu, cpu = rigs
        counts = npu.backend.sample_counts
        logits = logits_of(1, 6.0, is_bf16=False) if logits is None else logits
        want = cpu.sample(logits, rows)
        before = replace(counts)
        assert npu.sample(logits, rows) == want
        ways = [
            getattr(counts, name) - getattr(before, name)
            for name in ("on_device", "by_candidates", "whole", "num_bytes")
        ]
        return (*ways[:3], ways[3] / len(rows))

    return run


def test_greedy_rows_bring_nothing_to_the_host(counted):
    assert counted(plain(GREEDY)) == (ROWS, 0, 0, 0.0)


def test_rows_with_few_candidates_bring_64_of_them(counted):
    # 64 logits and their ids, and whether the row is finite.
    assert counted(plain(CHAT)) == (0, ROWS, 0, 64 * 8 + 1)


def test_rows_with_a_nucleus_bring_1024_and_sums_of_the_rest(counted):
    sampling = SamplingParams(temperature=0.7, top_p=0.9)
    assert counted(plain(sampling)) == (0, ROWS, 0, 1024 * 8 + 1 + 4 * -(-VOCAB // 512))


def test_penalties_bias_and_masks_bring_the_logits_that_they_change(counted):
    history = {i: i % 3 for i in range(100)}
    penalised = replace(CHAT, repetition_penalty=1.2, frequency_penalty=0.5)
    rows = [row._replace(history=history, biases={7: 3.0, 200: -1.0}) for row in plain(penalised)]
    assert counted(rows) == (0, ROWS, 0, 64 * 8 + 1 + 4 * 101)
    masked = [row._replace(allowed=mask_of(range(50, 90), VOCAB)) for row in plain(CHAT)]
    assert counted(masked) == (0, ROWS, 0, 64 * 8 + 1)
    greedy = [row._replace(allowed=mask_of(range(50, 90), VOCAB)) for row in plain(GREEDY)]
    assert counted(greedy) == (0, ROWS, 0, 64 * 8 + 1)


def test_only_the_row_that_candidates_cannot_decide_comes_down_whole(counted):
    rows = plain(CHAT)
    rows[5] = SamplingRow(SamplingParams(temperature=1.0, seed=3), 9, {}, {})
    rows[6] = SamplingRow(SamplingParams(temperature=0.0), 9, {}, {})
    logits = logits_of(1, 6.0, is_bf16=False)
    logits[5] = 0.0
    on_device, by_candidates, whole, per_row = counted(rows, logits)
    assert (on_device, by_candidates, whole) == (1, 14, 1)
    assert per_row * ROWS < VOCAB * 4 + 15 * (1024 * 8 + 100)
    rows[3] = rows[3]._replace(sampling=replace(CHAT, seed=3, logprobs=2))
    assert counted(rows, logits)[:3] == (1, 13, 2)
