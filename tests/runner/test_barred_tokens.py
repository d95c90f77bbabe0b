"""Bad words and allowed tokens, with the demo model."""

import pytest

from qwen3_a8w8 import LLM, SamplingParams
from qwen3_a8w8.errors import InvalidRequestError

PROMPT = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def llm():
    with LLM("demo", num_kv_blocks=65, max_model_len=512) as llm:
        yield llm


def text_of(llm, **settings):
    sampling = SamplingParams(temperature=0, max_tokens=60, **settings)
    return llm.generate(PROMPT, sampling)[0]


def test_bad_words_are_never_written(llm):
    assert "Paris" in text_of(llm).text
    assert "Paris" not in text_of(llm, bad_words=("Paris", " Paris")).text
    assert "Paris" not in text_of(llm, bad_words=("Paris",)).text
    (paris,) = llm.tokenizer.encode(" Paris")[:1]
    assert paris not in text_of(llm, bad_words=((paris,),)).token_ids


def test_bad_words_of_several_tokens_leave_their_parts(llm):
    words = ("capital of France",)
    plain, barred = text_of(llm), text_of(llm, bad_words=words)
    assert words[0] in plain.text
    assert words[0] not in barred.text
    assert "capital" in barred.text


def test_only_allowed_tokens_are_drawn(llm):
    ids = tuple(llm.tokenizer.encode("Paris London"))
    sampling = SamplingParams(max_tokens=20, seed=5, temperature=2.0, allowed_token_ids=ids)
    assert set(llm.generate(PROMPT, sampling)[0].token_ids) <= set(ids)


def test_batch_and_single_sequence_bar_the_same(llm):
    sampling = SamplingParams(max_tokens=30, seed=5, bad_words=("Paris", "the"), ignore_eos=True)
    alone = llm.generate(PROMPT, sampling)[0].token_ids
    many = llm.generate([PROMPT] * 16, sampling)
    assert [output.token_ids for output in many] == [alone] * 16


def test_token_that_is_none_is_refused(llm):
    with pytest.raises(InvalidRequestError, match="allowed_token_ids names token"):
        text_of(llm, allowed_token_ids=(10**6,))
