"""Grouping of live rows into B1 and B16."""

import pytest

from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.engine.scheduling.step_builder import choose_decode
from qwen3_a8w8.engine.sequence import ExplicitBatch, Sequence

SIZES = (1, 16)
STEP_S = {1: 0.010, 16: 0.035}  # one B16 step is worth three and a half B1 steps


def make_ready(num, *, explicit_batch=None, first_id=0):
    return [
        Sequence(
            first_id + i,
            (5,),
            (),
            SamplingParams(seed=0),
            stop_token_ids=(),
            max_tokens=9,
            explicit_batch=explicit_batch,
        )
        for i in range(num)
    ]


def ids(choice):
    return [seq.seq_id for seq in choice.rows]


def test_nothing_ready_gives_no_dispatch():
    assert choose_decode([], SIZES, STEP_S) is None


def test_one_ready_decodes_in_b1_even_if_b16_measured_faster():
    choice = choose_decode(make_ready(1), SIZES, {1: 0.010, 16: 0.009})
    assert (choice.batch_size, ids(choice)) == (1, [0])


def test_sixteen_ready_decode_in_b16_even_if_b1_measured_cheaper():
    choice = choose_decode(make_ready(16), SIZES, {1: 0.001, 16: 9.0})
    assert (choice.batch_size, ids(choice)) == (16, list(range(16)))


@pytest.mark.parametrize(
    ("num_ready", "batch_size", "num_rows"), [(2, 1, 1), (3, 1, 1), (4, 16, 4), (15, 16, 15)]
)
def test_some_ready_take_the_cheaper_size(num_ready, batch_size, num_rows):
    choice = choose_decode(make_ready(num_ready), SIZES, STEP_S)
    assert (choice.batch_size, len(choice.rows)) == (batch_size, num_rows)
    assert choice.num_ready == num_ready


def test_choice_says_why():
    choice = choose_decode(make_ready(4), SIZES, STEP_S)
    assert choice.reason == "4 ready, one token each: B1 0.04 s, B16 0.035 s"


def test_single_rows_rotate_fairly():
    ready = make_ready(3)
    order = []
    for step_id in range(7):
        (seq,) = choose_decode(ready, SIZES, STEP_S).rows
        seq.last_decode_step = step_id
        order.append(seq.seq_id)
    assert order == [0, 1, 2, 0, 1, 2, 0]


def test_runner_with_b1_alone_rotates_sixteen():
    ready = make_ready(16)
    ready[0].last_decode_step = 4
    assert ids(choose_decode(ready, (1,), {1: 0.01})) == [1]


def test_explicit_batch_keeps_its_size_when_rows_have_ended():
    choice = choose_decode(make_ready(2, explicit_batch=ExplicitBatch(16)), SIZES, STEP_S)
    assert (choice.batch_size, ids(choice)) == (16, [0, 1])


def test_explicit_batch_and_others_alternate_and_never_mix():
    explicit_batch = ExplicitBatch(16)
    ready = make_ready(3, explicit_batch=explicit_batch) + make_ready(5, first_id=10)
    order = []
    for step_id in range(4):
        choice = choose_decode(ready, SIZES, STEP_S)
        for seq in choice.rows:
            seq.last_decode_step = step_id
        order.append((choice.batch_size, ids(choice)))
    assert order == [(16, [0, 1, 2]), (16, [10, 11, 12, 13, 14])] * 2
