import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen3_a8w8.text.output_processor import Detokenizer
from qwen3_a8w8.text.tokenizer import Tokenizer
from tests.support.text_fixtures import write_tokenizer_files


@pytest.fixture(scope="module")
def spaced(tmp_path_factory):
    """A tokenizer with added tokens outside the byte alphabet."""
    directory = write_tokenizer_files(tmp_path_factory.mktemp("spaced"))
    path = directory / "tokenizer.json"
    path.write_text(
        path.read_text(encoding="utf-8").replace("<tool_response>", "<工具 结果>"),
        encoding="utf-8",
    )
    return Tokenizer.from_directory(directory)


def pieces(tokenizer, ids, *, skip=True):
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip)
    return [*(detokenizer.feed(token_id) for token_id in ids), detokenizer.finish()]


@given(data=st.data(), skip=st.booleans())
def test_pieces_of_random_ids_join_to_the_librarys_decode(tokenizer, data, skip):
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=60))
    joined = "".join(pieces(tokenizer, ids, skip=skip))
    assert joined == tokenizer.decode(ids, skip_special_tokens=skip)


@given(data=st.data())
def test_pieces_with_added_tokens_of_any_script_join_to_the_librarys_decode(spaced, data):
    ids = data.draw(st.lists(st.integers(200, spaced.vocab_size - 1), max_size=60))
    assert "".join(pieces(spaced, ids)) == spaced.decode(ids)


@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40))
def test_pieces_of_valid_text_never_show_half_a_character(tokenizer, text):
    ids = tokenizer.encode(text.replace("\ufffd", ""), allow_special=False)
    shown = pieces(tokenizer, ids)
    assert all("\ufffd" not in piece for piece in shown)
    assert shown[-1] == ""


def test_character_in_four_tokens_is_held_back_until_whole(tokenizer):
    ids = [tokenizer.encode(char)[0] for char in "x"]
    by_bytes = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}
    rocket = [by_bytes[bytes([byte])] for byte in "🚀".encode()]
    assert pieces(tokenizer, ids + rocket) == ["x", "", "", "", "🚀", ""]


def test_sequence_ending_inside_a_character_ends_with_one_replacement(tokenizer):
    by_bytes = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}
    start = [by_bytes[bytes([byte])] for byte in "🚀".encode()[:3]]
    assert pieces(tokenizer, start) == ["", "", "", "\ufffd"]


def test_special_tokens_are_shown_only_if_asked_for(tokenizer):
    ids = tokenizer.encode("a<|im_end|><think>")
    assert "".join(pieces(tokenizer, ids)) == "a<think>"
    assert "".join(pieces(tokenizer, ids, skip=False)) == "a<|im_end|><think>"
