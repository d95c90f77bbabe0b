"""A draw among candidates is the one that the CPU's sampler makes on the whole row, or none.

Needs no torch_npu: what a device would bring down is cut from the row here.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qwen3_a8w8.kernels.cpu.backend import CpuBackend
from qwen3_a8w8.kernels.npu.candidates import Candidates, RowSettings, choose
from tests.kernels.test_sample import sample

VOCAB = 3000


@pytest.fixture(scope="module")
def cpu():
    backend = CpuBackend(num_threads=1)
    yield backend
    backend.close()


def cut(logits, temperature, count, error=0.0):
    """The `count` largest logits of a row and the mass of the others, off by a relative error."""
    order = np.argsort(-logits, kind="stable")
    if count >= len(logits):
        return Candidates(np.arange(len(logits)), logits, np.float32(-np.inf), 0, 0.0)
    bound = logits[order[count - 1]]
    ids = np.sort(order[logits[order] > bound])
    others = np.delete(logits.astype(np.float64), ids)
    with np.errstate(all="ignore"):
        mass = np.exp((others - bound) / temperature).sum() * (1 + error)
    return Candidates(ids, logits[ids], bound, len(others), float(mass))


def draw_both(cpu, logits, count, error=0.0, **controls):
    """(drawn among candidates, drawn by the CPU) for each row of [B, vocab]."""
    want = sample(cpu, torch.from_numpy(logits), **controls)["sampled_ids"][:, 0].tolist()
    column = {
        name: controls[name] if isinstance(controls[name], list) else [controls[name]] * len(logits)
        for name in controls
    }
    for row, values in enumerate(logits):
        given_ = {name: column[name][row] for name in column}
        temperature = np.float32(given_.get("temperature", 1.0))
        got = choose(
            cut(values, temperature, count, error),
            RowSettings(
                temperature,
                given_.get("top_k", 0),
                float(np.float32(given_.get("top_p", 1.0))),
                float(np.float32(given_.get("min_p", 0.0))),
                given_.get("seeds", 0),
                given_.get("positions", 0),
            ),
        )
        yield got, want[row]


def normal(num_rows, spread, seed, *, is_bf16=False):
    logits = torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * spread
    return (logits.bfloat16().float() if is_bf16 else logits).numpy()


@settings(deadline=None, max_examples=100)
@given(
    spread=st.sampled_from([0.0, 0.01, 1.0, 3.0, 6.0, 30.0]),
    is_bf16=st.booleans(),
    data_seed=st.integers(0, 2**31),
    count=st.sampled_from([2, 20, 64, 1024, 2999, VOCAB]),
    error=st.sampled_from([0.0, 9e-4, -9e-4]),
    temperature=st.sampled_from([0.0, 1e-6, 0.1, 0.7, 1.0, 2.0, 30.0]),
    top_k=st.sampled_from([0, 1, 2, 19, 20, 64, 500, VOCAB, 5000]),
    top_p=st.sampled_from([0.0, 0.05, 0.8, 0.95, 0.9999999, 1.0]),
    min_p=st.sampled_from([0.0, 0.0, 1e-5, 0.05, 0.5, 1.0]),
)
def test_a_draw_among_candidates_is_that_of_the_whole_row(
    cpu, spread, is_bf16, data_seed, count, error, temperature, top_k, top_p, min_p
):
    controls = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "seeds": [data_seed + row for row in range(16)],
        "positions": [7 * row for row in range(16)],
    }
    logits = normal(16, spread, data_seed, is_bf16=is_bf16)
    for got, want in draw_both(cpu, logits, count, error, **controls):
        assert got is None or got == want


@pytest.mark.parametrize(
    ("controls", "count", "least"),
    [
        ({"top_k": 20, "top_p": 0.95, "temperature": 0.6}, 64, 0.995),
        ({"top_k": 20, "top_p": 0.8, "temperature": 0.7}, 64, 0.995),
        ({"top_k": 20}, 64, 0.995),
        ({"top_k": 1}, 64, 1.0),
        ({"top_p": 0.9}, 1024, 0.99),
        ({"top_p": 0.5}, 1024, 0.99),
        ({"min_p": 0.05}, 1024, 0.99),
        ({"temperature": 0.05}, 1024, 0.995),
        ({"temperature": 0.0}, 64, 1.0),
    ],
    ids=str,
)
def test_usual_settings_are_decided_by_candidates(cpu, controls, count, least):
    """What is left to the whole row is only what falls into a margin."""
    drawn = []
    for seed in range(4):
        logits = normal(64, 4.0, seed)
        more = {"seeds": list(range(64)), "positions": seed}
        drawn += draw_both(cpu, logits, count, **controls, **more)
    assert all(got in (None, want) for got, want in drawn)
    assert sum(got is not None for got, _ in drawn) >= least * len(drawn)


@pytest.mark.parametrize(
    "controls",
    [{}, {"top_p": 0.999}, {"top_k": 200}, {"min_p": 1e-9}, {"temperature": 5.0, "top_p": 0.9}],
    ids=str,
)
def test_what_the_candidates_cannot_decide_is_left_open(cpu, controls):
    logits = normal(16, 1.0, 0)
    drawn = list(draw_both(cpu, logits, 64, seeds=list(range(16)), **controls))
    assert [got for got, _ in drawn] == [None] * 16


def test_ties_across_the_bound_are_left_open_and_ties_among_candidates_are_not(cpu):
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, [5, 900, 2000]] = 2.0
    assert [got for got, _ in draw_both(cpu, logits, 3, temperature=0.0)] == [None]
    logits[0, 1500:1560] = 1.0
    for position in range(50):
        ((got, want),) = draw_both(cpu, logits, 64, top_k=10, positions=[position])
        assert got == want


def test_a_row_without_a_token_to_draw_is_left_open():
    barred = np.full(3, -np.inf, np.float32)
    row = Candidates(np.arange(3), barred, np.float32(-np.inf), 0, 0.0)
    assert choose(row, RowSettings(np.float32(1), 0, 1.0, 0.0, 0, 0)) is None
    empty = Candidates(np.arange(0), barred[:0], np.float32(-np.inf), 5, 0.0)
    assert choose(empty, RowSettings(np.float32(0), 0, 1.0, 0.0, 0, 0)) is None
