"""Ranges of the request's settings: what passes here reaches int32 and float32 unharmed."""

import numpy as np
import pytest

from qwen3_a8w8.engine.plan import SequenceStart
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.errors import InvalidRequestError
from qwen3_a8w8.runner.sequences import RunnerSequence
from tests.support.runners import make_sampler


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", True),
        ("max_tokens", 1.5),
        ("min_tokens", -1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", -0.1),
        ("temperature", 10**400),
        ("top_k", -2),
        ("top_k", 2**31),
        ("top_p", -0.1),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("seed", -(2**63) - 1),
        ("seed", 2**63),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 1e-300),
        ("logprobs", 21),
        ("n", 0),
        ("n", 17),
        ("stop", ("",)),
        ("stop", ("a",) * 17),
        ("stop_token_ids", (-1,)),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {1: 101.0}),
        ("logit_bias", {1: 10**400}),
        ("allowed_token_ids", ()),
        ("allowed_token_ids", (-1,)),
        ("bad_words", ("",)),
        ("bad_words", ((),)),
        ("bad_words", ((1, -1),)),
        ("bad_words", ("a",) * 1025),
    ],
)
def test_value_outside_its_range_is_refused_naming_the_field(field, value):
    with pytest.raises(InvalidRequestError, match=field) as caught:
        SamplingParams(**{field: value})
    assert caught.value.param == field


def test_min_tokens_above_max_tokens_is_refused():
    with pytest.raises(InvalidRequestError, match="min_tokens 5 is above max_tokens 4"):
        SamplingParams(max_tokens=4, min_tokens=5)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", {512: 1.0}),
        ("stop_token_ids", (512,)),
        ("allowed_token_ids", (1, 512)),
        ("bad_words", ((512,),)),
    ],
)
def test_id_outside_the_vocabulary_is_refused(field, value):
    params = SamplingParams(**{field: value})
    params.check_vocabulary(513)
    with pytest.raises(InvalidRequestError, match=f"{field} names token 512"):
        params.check_vocabulary(512)


def test_negative_seeds_are_seeds_but_for_minus_one():
    assert SamplingParams(seed=-1).seed is None
    assert SamplingParams(seed=-2).seed == 2**63 - 2
    assert SamplingParams(seed=-(2**63)).seed == 0


def test_bad_word_as_text_is_refused_without_a_tokenizer():
    with pytest.raises(InvalidRequestError, match="bad_words has the text 'fox'"):
        SamplingParams(bad_words=("fox",)).check_vocabulary(512)


def test_allowed_tokens_and_a_grammar_exclude_each_other():
    with pytest.raises(InvalidRequestError, match="allowed_token_ids"):
        SamplingParams(allowed_token_ids=(1,), structured={"json_object": True})


def row_of(output, drafts=(), **settings):
    start = SequenceStart(1, (5, 6), tuple(output), SamplingParams(**settings), (0,))
    return RunnerSequence(start, vocab_size=64).sampling_row(drafts)


def barred(row):
    return {token_id for token_id, bias in row.biases.items() if bias == float("-inf")}


def test_bad_words_bar_the_token_that_would_complete_one():
    words = ((7,), (8, 9), (6, 3))
    assert barred(row_of([], bad_words=words)) == {7}
    # The prompt's last token, 6, doesn't count: bad words are of the output.
    assert barred(row_of([8], bad_words=words)) == {7, 9}
    assert barred(row_of([8, 6], bad_words=words)) == {7, 3}
    assert barred(row_of([], drafts=(8,), bad_words=words)) == {7, 9}
    assert barred(row_of([6], drafts=(8, 6), bad_words=words)) == {7, 3}


def test_allowed_tokens_become_a_mask_and_outlive_bars():
    row = row_of([], allowed_token_ids=(3, 40))
    assert np.unpackbits(row.allowed.view(np.uint8), bitorder="little").nonzero()[0].tolist() == [
        3,
        40,
    ]
    assert barred(row_of([], allowed_token_ids=(3, 40), bad_words=((3,),))) == {3}
    # Barring all that is allowed would leave nothing to draw.
    assert barred(row_of([], allowed_token_ids=(3,), bad_words=((3,),))) == set()
    assert barred(row_of([], allowed_token_ids=(0,), min_tokens=2)) == set()


def test_extreme_values_that_pass_are_packed_as_finite_numbers():
    extreme = SamplingParams(
        temperature=5e-324,
        top_k=2**31 - 1,
        top_p=5e-324,
        min_p=1.0,
        seed=2**63 - 1,
        repetition_penalty=0.01,
        presence_penalty=2,
        frequency_penalty=-2,
        logit_bias={0: 100, 1: -100},
        logprobs=20,
    )
    sequence = RunnerSequence(SequenceStart(1, (0, 1), (1,), extreme), vocab_size=64)
    sampler = make_sampler(1)
    sampler.pack([sequence.sampling_row()])
    arrays = sampler.arrays
    assert all(np.isfinite(array).all() for array in arrays.values())
    assert arrays["top_k"][0] == 2**31 - 1
    assert arrays["seeds"][0] == 2**63 - 1
