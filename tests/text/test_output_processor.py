import pytest

from qwen3_a8w8.engine.plan import PromptToken, TokenLogprobs
from qwen3_a8w8.engine.request import TokenEvent
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.errors import EngineDeadError, RequestFailedError
from qwen3_a8w8.text.output_processor import OutputProcessor


def make_processor(tokenizer, **settings):
    return OutputProcessor(tokenizer, SamplingParams(**settings))


def event(token_ids, finish_reason=None, logprobs=(), **fields):
    """As the engine gives it: with "stop" the last id is the one that ended the sequence."""
    stop = token_ids[-1] if finish_reason == "stop" else None
    return TokenEvent(0, tuple(token_ids), tuple(logprobs), finish_reason, stop, **fields)


def single_bytes(tokenizer, text):
    """Ids of the text with one token per byte."""
    by_bytes = {tokenizer.token_bytes(i): i for i in reversed(range(tokenizer.vocab_size))}
    return [by_bytes[bytes([byte])] for byte in text.encode()]


@pytest.fixture
def eos(tokenizer):
    return tokenizer.token_id("<|im_end|>")


def test_text_and_end_of_sequence_finish_once_without_the_tokens_text(tokenizer, eos):
    processor = make_processor(tokenizer, skip_special_tokens=False)
    first = processor.feed(event(tokenizer.encode("the dog")))
    last = processor.feed(event([eos], "stop"))
    assert (first.text, first.finish_reason) == ("the dog", None)
    assert (last.text, last.finish_reason, last.stop_reason) == ("", "stop", eos)
    assert last.token_ids == (eos,)
    assert not last.is_stopped
    assert processor.feed(event([eos], "stop")).finish_reason is None


def test_stop_token_that_is_no_special_token_leaves_no_text(tokenizer):
    ids = single_bytes(tokenizer, "ab!")
    processor = make_processor(tokenizer)
    delta = processor.feed(event(ids, "stop"))
    assert (delta.text, delta.stop_reason) == ("ab", ids[-1])


def test_end_of_sequence_ignored_is_shown_when_not_skipped(tokenizer, eos):
    processor = make_processor(tokenizer, skip_special_tokens=False)
    delta = processor.feed(event([eos], "length"))
    assert (delta.text, delta.finish_reason) == ("<|im_end|>", "length")


def test_stop_string_stops_and_drops_what_follows(tokenizer):
    ids = single_bytes(tokenizer, "one END two")
    processor = make_processor(tokenizer, stop=["END"])
    texts = [processor.feed(event([token_id])) for token_id in ids[:6]]
    last = processor.feed(event(ids[6:]))
    assert "".join(delta.text for delta in texts) + last.text == "one "
    assert (last.finish_reason, last.stop_reason, last.is_stopped) == ("stop", "END", True)
    assert last.token_ids == (ids[6],)
    assert processor.num_tokens == 7
    assert processor.feed(event(ids, "length")) == processor.feed(event([]))


def test_stop_string_on_the_last_allowed_token_is_a_stop_without_abort(tokenizer):
    processor = make_processor(tokenizer, stop=["d"])
    delta = processor.feed(event(single_bytes(tokenizer, "ad"), "length"))
    assert (delta.text, delta.finish_reason, delta.is_stopped) == ("a", "stop", False)


def test_length_with_a_begun_stop_string_keeps_the_tail(tokenizer):
    processor = make_processor(tokenizer, stop=["END"])
    assert processor.feed(event(single_bytes(tokenizer, "an E"))).text == "an "
    last = processor.feed(event(single_bytes(tokenizer, "N"), "length"))
    assert (last.text, last.finish_reason) == ("EN", "length")


def test_stop_string_within_min_tokens_is_text(tokenizer):
    processor = make_processor(tokenizer, stop=["b"], min_tokens=3)
    delta = processor.feed(event(single_bytes(tokenizer, "abbab")))
    assert (delta.text, delta.stop_reason) == ("abba", "b")


def test_end_inside_a_character_shows_one_replacement(tokenizer):
    processor = make_processor(tokenizer, stop=["x"])
    ids = single_bytes(tokenizer, "a🚀")[:-1]
    assert processor.feed(event(ids)).text == "a"
    assert processor.feed(event([], "length")).text == "\ufffd"


def test_logprobs_carry_real_bytes_and_offsets(tokenizer):
    ids = single_bytes(tokenizer, "aé!")
    processor = make_processor(tokenizer)
    positions = [
        TokenLogprobs(-0.5, ((ids[3], -0.25), (ids[0], -0.5))),
        *[TokenLogprobs(-1.0, ())] * 3,
    ]
    delta = processor.feed(event(ids, "length", positions))
    sampled = [entry.sampled for entry in delta.logprobs]
    assert [token.token_bytes for token in sampled] == [b"a", b"\xc3", b"\xa9", b"!"]
    assert [token.token for token in sampled] == ["a", "\\xc3", "\\xa9", "!"]
    assert [entry.text_offset for entry in delta.logprobs] == [0, 1, 1, 2]
    assert [(t.token, t.logprob) for t in delta.logprobs[0].top] == [("!", -0.25), ("a", -0.5)]


def test_logprobs_end_with_the_token_that_completed_the_stop_string(tokenizer):
    ids = single_bytes(tokenizer, "a#b")
    delta = make_processor(tokenizer, stop=["#"]).feed(
        event(ids, logprobs=[TokenLogprobs(-1.0, ())] * 3)
    )
    assert [entry.sampled.token for entry in delta.logprobs] == ["a", "#"]


def test_resumed_sequence_in_pieces_equals_one_feed(tokenizer):
    ids = tokenizer.encode("naïve 🙂 café <think> the dog END")
    whole = make_processor(tokenizer, stop=["END"]).feed(event(ids))
    processor = make_processor(tokenizer, stop=["END"])
    parts = [processor.feed(event([token_id])) for token_id in ids]
    assert "".join(part.text for part in parts) == whole.text == "naïve 🙂 café <think> the dog "


def test_time_that_is_up_is_a_length_and_failures_are_raised(tokenizer):
    assert make_processor(tokenizer).feed(event([], "timeout")).finish_reason == "length"
    with pytest.raises(EngineDeadError, match="abort"):
        make_processor(tokenizer).feed(event([], "abort"))
    failure = RequestFailedError("not computable")
    with pytest.raises(RequestFailedError, match="not computable"):
        make_processor(tokenizer).feed(event([], "error", error=failure))


def test_prompt_logprobs_and_cached_tokens_come_with_the_first_tokens_only(tokenizer):
    ids = single_bytes(tokenizer, "né")
    known = tuple(
        PromptToken(0, place, token_id, TokenLogprobs(-float(place), ((token_id, -0.5),)))
        for place, token_id in enumerate(ids[1:], start=1)
    )
    processor = make_processor(tokenizer)
    assert processor.feed(event([], num_cached_tokens=4)).num_cached_tokens == 0
    first = processor.feed(event(ids[:1], num_cached_tokens=4, prompt_tokens=known))
    assert first.num_cached_tokens == 4
    assert [entry.sampled.token_bytes for entry in first.prompt_logprobs] == [b"\xc3", b"\xa9"]
    assert [entry.sampled.logprob for entry in first.prompt_logprobs] == [-1.0, -2.0]
    # After a failover the next replica finds its own output in the prefix cache.
    assert processor.feed(event(ids[1:], num_cached_tokens=8)).num_cached_tokens == 0
