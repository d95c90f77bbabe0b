"""Controls that are written in place must say what controls written from nothing would say."""

import numpy as np

from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.runner.sequences import SamplingRow
from tests.support.runners import make_sampler

HOT = SamplingParams(temperature=0.5, top_k=7, top_p=0.75, min_p=0.25, seed=2**40, logprobs=3)
COLD = SamplingParams(temperature=0)
PENALISED = SamplingParams(repetition_penalty=2, presence_penalty=1, frequency_penalty=-1, seed=5)
MASK = np.asarray([1, -1, 6], np.int32)


def plain(sampling, position):
    return SamplingRow(sampling, position, {}, {})


STEPS = [
    [plain(HOT, 4), plain(COLD, 9)],
    [plain(HOT, 5), plain(COLD, 10)],
    [plain(COLD, 11), plain(HOT, 6)],
    [SamplingRow(PENALISED, 1, {3: 1.5}, {8: 2, 9: 0}), plain(HOT, 7)],
    [SamplingRow(PENALISED, 2, {}, {8: 2, 9: 1}), SamplingRow(HOT, 8, {2: -1.0, 4: 1.0}, {}, MASK)],
    [plain(PENALISED, 3), SamplingRow(HOT, 9, {}, {}, MASK)],
    [plain(PENALISED, 4), plain(HOT, 10)],
    [plain(COLD, 12)],
    [SamplingRow(PENALISED, 5, {}, dict.fromkeys(range(100), 1))] * 3,
]


def inputs_of(sampler):
    """What the kernel can read: fixed arrays, and lists as far as a range or mask reaches."""
    arrays = {name: array.tolist() for name, array in sampler.arrays.items()}
    lists = {
        name: each.tensor.to_continuous_tensor().tolist() for name, each in sampler.lists.items()
    }
    for kind, names in (("bias", ("ids", "values")), ("history", ("ids", "counts"))):
        for begin, end in arrays.pop(f"{kind}_range"):
            for name in names:
                key = f"{kind}_{name}"
                arrays.setdefault(key, []).append(lists[key][begin:end])
    starts = arrays.pop("allowed_start")
    words = lists["allowed_words"]
    arrays["allowed"] = [words[at : at + MASK.size] if at >= 0 else None for at in starts]
    return arrays


def test_every_step_is_packed_as_if_it_were_the_first():
    sampler = make_sampler(16)
    for rows in [*STEPS, *reversed(STEPS)]:
        fresh = make_sampler(16)
        sampler.pack(rows)
        fresh.pack(rows)
        assert inputs_of(sampler) == inputs_of(fresh)


def test_columns_hold_each_rows_own_settings():
    sampler = make_sampler(16)
    sampler.pack(STEPS[4])
    columns = {name: column[:2] for name, column in inputs_of(sampler).items()}
    assert columns == {
        "num_active": [2],
        "seeds": [5, 2**40],
        "temperature": [1.0, 0.5],
        "top_p": [1.0, 0.75],
        "min_p": [0.0, 0.25],
        "repetition_penalty": [2.0, 1.0],
        "presence_penalty": [1.0, 0.0],
        "frequency_penalty": [-1.0, 0.0],
        "top_k": [0, 7],
        "positions": [2, 8],
        "num_logprobs": [-1, 3],
        "bias_ids": [[], [2, 4]],
        "bias_values": [[], [-1.0, 1.0]],
        "history_ids": [[8, 9], []],
        "history_counts": [[2, 1], []],
        "allowed": [None, MASK.tolist()],
    }
