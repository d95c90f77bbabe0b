from dataclasses import dataclass

import pytest

from qwen3_a8w8.text.output_processor import OutputProcessor


@dataclass
class Position:
    logprob: float
    top: tuple = ()


def single_bytes(tokenizer, text):
    """Ids of the text with one token per byte."""
    by_bytes = {tokenizer.token_bytes(i): i for i in reversed(range(tokenizer.vocab_size))}
    return [by_bytes[bytes([byte])] for byte in text.encode()]


@pytest.fixture
def eos(tokenizer):
    return tokenizer.token_id("<|im_end|>")


def test_text_and_end_of_sequence_finish_once_without_the_tokens_text(tokenizer, eos):
    processor = OutputProcessor(tokenizer, stop_token_ids=[eos], skip_special_tokens=False)
    first = processor.feed(tokenizer.encode("the dog"))
    last = processor.feed([eos], finish_reason="stop")
    assert (first.text, first.finish_reason) == ("the dog", None)
    assert (last.text, last.finish_reason, last.stop_reason) == ("", "stop", eos)
    assert last.token_ids == (eos,)
    assert not last.is_stopped
    assert processor.feed([eos], finish_reason="stop").finish_reason is None


def test_stop_token_that_is_no_special_token_leaves_no_text(tokenizer):
    ids = single_bytes(tokenizer, "ab!")
    processor = OutputProcessor(tokenizer, stop_token_ids=[ids[-1]])
    delta = processor.feed(ids, finish_reason="stop")
    assert (delta.text, delta.stop_reason) == ("ab", ids[-1])


def test_end_of_sequence_ignored_is_shown_when_not_skipped(tokenizer, eos):
    processor = OutputProcessor(tokenizer, skip_special_tokens=False)
    delta = processor.feed([eos], finish_reason="length")
    assert (delta.text, delta.finish_reason) == ("<|im_end|>", "length")


def test_stop_string_stops_and_drops_what_follows(tokenizer):
    ids = single_bytes(tokenizer, "one END two")
    processor = OutputProcessor(tokenizer, stop=["END"])
    texts = [processor.feed([token_id]) for token_id in ids[:6]]
    last = processor.feed(ids[6:])
    assert "".join(delta.text for delta in texts) + last.text == "one "
    assert (last.finish_reason, last.stop_reason, last.is_stopped) == ("stop", "END", True)
    assert last.token_ids == (ids[6],)
    assert processor.num_tokens == 7
    assert processor.feed(ids, finish_reason="length") == processor.feed([])


def test_stop_string_on_the_last_allowed_token_is_a_stop_without_abort(tokenizer):
    processor = OutputProcessor(tokenizer, stop=["d"])
    delta = processor.feed(single_bytes(tokenizer, "ad"), finish_reason="length")
    assert (delta.text, delta.finish_reason, delta.is_stopped) == ("a", "stop", False)


def test_length_with_a_begun_stop_string_keeps_the_tail(tokenizer):
    processor = OutputProcessor(tokenizer, stop=["END"])
    assert processor.feed(single_bytes(tokenizer, "an E")).text == "an "
    last = processor.feed(single_bytes(tokenizer, "N"), finish_reason="length")
    assert (last.text, last.finish_reason) == ("EN", "length")


def test_stop_string_within_min_tokens_is_text(tokenizer):
    processor = OutputProcessor(tokenizer, stop=["b"], min_tokens=3)
    delta = processor.feed(single_bytes(tokenizer, "abbab"))
    assert (delta.text, delta.stop_reason) == ("abba", "b")


def test_end_inside_a_character_shows_one_replacement(tokenizer):
    processor = OutputProcessor(tokenizer, stop=["x"])
    ids = single_bytes(tokenizer, "a🚀")[:-1]
    assert processor.feed(ids).text == "a"
    assert processor.feed([], finish_reason="length").text == "\ufffd"


def test_logprobs_carry_real_bytes_and_offsets(tokenizer):
    ids = single_bytes(tokenizer, "aé!")
    processor = OutputProcessor(tokenizer)
    positions = [Position(-0.5, ((ids[3], -0.25), (ids[0], -0.5))), *[Position(-1.0)] * 3]
    delta = processor.feed(ids, positions, "length")
    sampled = [entry.sampled for entry in delta.logprobs]
    assert [token.token_bytes for token in sampled] == [b"a", b"\xc3", b"\xa9", b"!"]
    assert [token.token for token in sampled] == ["a", "\\xc3", "\\xa9", "!"]
    assert [entry.text_offset for entry in delta.logprobs] == [0, 1, 1, 2]
    assert [(t.token, t.logprob) for t in delta.logprobs[0].top] == [("!", -0.25), ("a", -0.5)]


def test_logprobs_end_with_the_token_that_completed_the_stop_string(tokenizer):
    ids = single_bytes(tokenizer, "a#b")
    delta = OutputProcessor(tokenizer, stop=["#"]).feed(ids, [Position(-1.0)] * 3)
    assert [entry.sampled.token for entry in delta.logprobs] == ["a", "#"]


def test_resumed_sequence_in_pieces_equals_one_feed(tokenizer):
    ids = tokenizer.encode("naïve 🙂 café <think> the dog END")
    whole = OutputProcessor(tokenizer, stop=["END"]).feed(ids)
    processor = OutputProcessor(tokenizer, stop=["END"])
    parts = [processor.feed([token_id]) for token_id in ids]
    assert "".join(part.text for part in parts) == whole.text == "naïve 🙂 café <think> the dog "
