"""What crosses the socket arrives as it was sent."""

import pytest

from deployments.engine.step_channel import PlanDecoder, PlanEncoder, decode_answer, encode_answer
from qwen3_a8w8.engine.plan import (
    DecodeBatch,
    DecodeRow,
    PrefillChunk,
    PromptToken,
    SampledToken,
    SequenceStart,
    StepPlan,
    StepResult,
    TokenLogprobs,
)
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.errors import StepFailedError


def decode(step_id, *rows, **fields):
    return StepPlan(step_id, decode=DecodeBatch(16, tuple(rows)), **fields)


START = SequenceStart(2, (1, 2, 3), (4,), SamplingParams(seed=1, logit_bias={3: 1.0}), (0,))
PLANS = [
    StepPlan(
        0, start=(START,), prefill=(PrefillChunk(2, 0, 4, (7,), True),), prefill_layers=(0, 1)
    ),
    decode(1, DecodeRow(2, 4, (7,)), DecodeRow(5, 9, (1, 2))),
    decode(2, DecodeRow(2, 5, (7, 3)), DecodeRow(5, 10, (1, 2))),
    decode(3, DecodeRow(5, 11, (1, 2))),
    decode(4, DecodeRow(2, 6, (7, 3)), DecodeRow(5, 12, (4, 2, 9))),  # 5 was preempted
    decode(5, DecodeRow(2, 7, (7,))),
    decode(6, DecodeRow(2, 8, (7, 8)), release=(2, 5, 99)),
    StepPlan(7, release=(2,)),
    decode(8, DecodeRow(6, 3, (1,), (5, 6))),
]


def test_plans_arrive_as_they_were_sent():
    encoder, decoder = PlanEncoder(), PlanDecoder()
    assert [decoder.decode(encoder.encode(plan)) for plan in PLANS] == PLANS


def test_table_that_has_not_changed_is_the_same_object_and_costs_nothing():
    encoder, decoder = PlanEncoder(), PlanDecoder()
    table = tuple(range(1, 2000))
    messages = [encoder.encode(decode(i, DecodeRow(0, 9 + i, table))) for i in range(2)]
    first, second = (decoder.decode(message).decode.rows[0] for message in messages)
    assert first.block_ids == table
    assert second.block_ids is first.block_ids
    longer = encoder.encode(decode(2, DecodeRow(0, 11, (*table, 7))))
    assert decoder.decode(longer).decode.rows[0].block_ids == (*table, 7)
    assert len(messages[0]) > 2000
    assert len(messages[1]) < len(longer) < 200


def test_table_of_a_released_sequence_is_forgotten_and_sent_whole_again():
    encoder, decoder = PlanEncoder(), PlanDecoder()
    table = tuple(range(1, 2000))
    for fields in ({}, {"release": (0,)}):
        message = encoder.encode(decode(0, DecodeRow(0, 9, table), **fields))
        assert len(message) > 2000
        assert decoder.decode(message).decode.rows[0].block_ids == table


@pytest.mark.parametrize(
    "result",
    [
        StepResult(3, (), 0.5),
        StepResult(4, (SampledToken(1, 8, 5), SampledToken(2, 9, 6)), 0.5, 0.25, 0.125),
        StepResult(
            5,
            (SampledToken(1, 8, 5, TokenLogprobs(-1.0, ((5, -1.0),)), "no token fits"),),
            0.5,
            prompt_tokens=(PromptToken(1, 3, 4, TokenLogprobs(-2.0, ())),),
        ),
    ],
)
def test_results_arrive_as_they_were_sent(result):
    assert decode_answer(encode_answer(result)) == result


def test_error_arrives_as_it_was_raised():
    error = decode_answer(encode_answer(StepFailedError("bad step")))
    assert type(error) is StepFailedError
    assert str(error) == "bad step"
