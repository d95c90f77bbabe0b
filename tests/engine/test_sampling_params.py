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
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("seed", -1),
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
    ],
)
def test_value_outside_its_range_is_refused_naming_the_field(field, value):
    with pytest.raises(InvalidRequestError, match=field) as caught:
        SamplingParams(**{field: value})
    assert caught.value.param == field


def test_min_tokens_above_max_tokens_is_refused():
    with pytest.raises(InvalidRequestError, match="min_tokens 5 is above max_tokens 4"):
        SamplingParams(max_tokens=4, min_tokens=5)


@pytest.mark.parametrize("field", ["logit_bias", "stop_token_ids"])
def test_id_outside_the_vocabulary_is_refused(field):
    params = SamplingParams(**{field: {512: 1.0} if field == "logit_bias" else (512,)})
    params.check_vocabulary(513)
    with pytest.raises(InvalidRequestError, match=f"{field} names token 512"):
        params.check_vocabulary(512)


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
    sequence = RunnerSequence(SequenceStart(1, (0, 1), (1,), extreme))
    sampler = make_sampler(1)
    sampler.pack([sequence.sampling_row()])
    arrays = sampler.arrays
    assert all(np.isfinite(array).all() for array in arrays.values())
    assert arrays["top_k"][0] == 2**31 - 1
    assert arrays["seeds"][0] == 2**63 - 1
