"""The bound below a text's number of tokens: never above it, and near it where it has to be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen3_a8w8.errors import ContextLengthError
from qwen3_a8w8.text import token_bound
from qwen3_a8w8.text.token_bound import TokenBound

ALL_BYTES = [bytes([byte]) for byte in range(256)]


def fewest(data, tokens):
    """Fewest tokens that a text can be cut into, whatever the tokenizer."""
    least = [0]
    for end in range(1, len(data) + 1):
        least.append(1 + min(least[end - len(t)] for t in tokens if data[:end].endswith(t)))
    return least[-1]


@given(
    st.lists(st.text("ab", min_size=2, max_size=9).map(str.encode), max_size=6),
    st.text("abc", max_size=60).map(str.encode),
)
def test_bound_is_no_more_than_the_fewest_tokens(tokens, data):
    assert TokenBound(tokens).min_tokens(data, 10**9) <= fewest(data, [*tokens, *ALL_BYTES])


@pytest.mark.parametrize("length", [4, 5, 21])
def test_bound_of_a_repeated_token_is_exact(length):
    token = bytes(range(length))
    assert TokenBound([token]).min_tokens(token * 70, 10**9) == 70


def test_bound_does_not_depend_on_where_the_text_is_cut_for_reading(monkeypatch):
    bound = TokenBound([b"abcdef", b"efabcdefab"])
    data = b"abcdefabxyzcdefabcdefab" * 40
    whole = bound.min_tokens(data, 10**9)
    for size in (1, 2, 7, 64):
        monkeypatch.setattr(token_bound, "_CHUNK", size)
        assert bound.min_tokens(data, 10**9) == whole


def test_bound_stops_where_it_is_enough(monkeypatch):
    monkeypatch.setattr(token_bound, "_CHUNK", 30)
    assert TokenBound([]).min_tokens(b"x" * 10**6, 5) == 10


@given(st.text(st.sampled_from("the dog 🙂你好\u0301é\n{\"'\u1fbe"), min_size=1, max_size=300))
def test_prompt_that_fits_is_never_refused(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.encode_prompt(text, len(ids), first_look_chars=1) == ids


@pytest.mark.parametrize("unit", ["qwx", "你", "e\u0301"])
def test_long_text_without_breaks_is_refused_by_its_bytes(tokenizer, unit):
    text = unit * (10**6 // len(unit))
    # Otherwise the message states how much of it was encoded.
    with pytest.raises(ContextLengthError, match=f"has {len(text)} characters, that is at least"):
        tokenizer.encode_prompt(text, 3 * 10**4)
