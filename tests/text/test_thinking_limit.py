"""A bounded think block, from the request's field to the sampler's input."""

import pytest

from qwen3_a8w8.engine.plan import SequenceStart
from qwen3_a8w8.engine.sampling_params import SamplingParams, ThinkingLimit
from qwen3_a8w8.errors import InvalidRequestError
from qwen3_a8w8.openai.chat.choice import thinking_limit
from qwen3_a8w8.runner.sequences import RunnerSequence
from qwen3_a8w8.text.reasoning import ReasoningState

LIMIT = ThinkingLimit(num_tokens=3, end_ids=(50, 51, 52), close_id=51, open_id=9)


@pytest.mark.parametrize(
    ("output", "forced"),
    [
        ([], None),
        ([9, 1], None),
        ([9, 1, 2], 50),
        ([9, 1, 2, 50], 51),
        ([9, 1, 2, 50, 51], 52),
        ([9, 1, 2, 50, 51, 52], None),
        ([9, 51, 2], None),
        ([1, 2, 3], None),
        ([1, 9, 3], None),
        # What was forced is the same when the sequence is resumed in its middle.
        ([9, 1, 2, 50, 51, 52, 7], None),
    ],
)
def test_forced_id_follows_from_the_output_alone(output, forced):
    assert LIMIT.forced_id(output) == forced


def test_forced_id_without_an_opening_tag_applies_from_the_start():
    limit = ThinkingLimit(num_tokens=0, end_ids=(51,), close_id=51)
    assert limit.forced_id([]) == 51
    assert limit.forced_id([51]) is None


@pytest.mark.parametrize(
    "fields", [{"num_tokens": -1}, {"num_tokens": True}, {"end_ids": ()}, {"end_ids": (1,) * 33}]
)
def test_limit_out_of_range_is_refused(fields):
    with pytest.raises(InvalidRequestError) as caught:
        ThinkingLimit(**{"num_tokens": 1, "end_ids": (1,), "close_id": 1} | fields)
    assert caught.value.param == "thinking_budget"


def test_limit_with_an_id_outside_the_vocabulary_is_refused():
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(thinking_limit=LIMIT).check_vocabulary(52)
    assert caught.value.param == "thinking_budget"


def sequence(output, **sampling):
    params = SamplingParams(seed=1, thinking_limit=LIMIT, **sampling)
    return RunnerSequence(SequenceStart(0, (1, 2), tuple(output), params, (3,)), vocab_size=64)


def test_sampling_row_of_a_forced_token_is_greedy_with_that_token_far_ahead():
    settings = {"temperature": 1.5, "repetition_penalty": 2.0, "logit_bias": {50: -100}}
    row = sequence([9, 1, 2], **settings).sampling_row()
    assert row.sampling.temperature == 0
    assert row.biases == {50: 1e30}
    assert row.history == {}
    assert row.position == 5


def test_sampling_row_counts_draft_tokens_as_output():
    assert sequence([9, 1]).sampling_row([2]).biases == {50: 1e30}
    assert sequence([9, 1]).sampling_row().biases == {}
    assert sequence([9, 1]).sampling_row([51]).biases == {}


def test_limit_of_a_request_depends_on_where_the_prompt_leaves_the_answer(tokenizer):
    open_id, close_id = tokenizer.token_id("<think>"), tokenizer.token_id("</think>")
    limit = thinking_limit(tokenizer, 5, ReasoningState.UNDECIDED)
    assert limit.open_id == open_id
    assert limit.close_id == close_id
    assert thinking_limit(tokenizer, 0, ReasoningState.UNDECIDED).num_tokens == 1
    assert tokenizer.decode(limit.end_ids) == "\n</think>\n\n"
    assert thinking_limit(tokenizer, 5, ReasoningState.REASONING).open_id is None
    assert thinking_limit(tokenizer, 5, ReasoningState.CONTENT) is None
