"""Chunks of Ollama's answers, from outputs that are cut in any way."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen3_a8w8.errors import EngineDeadError
from qwen3_a8w8.ollama.writer import OllamaChatWriter, OllamaGenerateWriter
from qwen3_a8w8.openai.chat.choice import ChatParsing
from qwen3_a8w8.openai.response import ResponseContext, ResponseIdentity
from qwen3_a8w8.text.outputs import LogprobEntry, OutputDelta, TokenLogprob

CALL = '<tool_call>\n{"name": "now", "arguments": {"a": [1, {"b": null}]}}\n</tool_call>'
ANSWER = f"<think>\nfox\n</think>\n\nyes\n{CALL}"


def entry(text):
    return LogprobEntry(TokenLogprob(0, text, text.encode(), -0.5), (), 0)


def written(texts, kind=OllamaChatWriter, finish="stop"):
    """The chunks of an answer that comes in these pieces, and the whole one."""
    context = ResponseContext(ResponseIdentity("ollama-1", 1700000000, "m"), ((0,) * 9,))
    one = kind(context, ChatParsing(has_tools=True))
    chunks = list(one.begin())
    for text in texts:
        chunks += one.feed(0, OutputDelta(text, (7,), (entry(text),)))
    chunks += one.feed(0, OutputDelta("", (7,), (entry("end"),), finish))
    chunks += one.finish()
    whole = json.loads(one.whole(chunks).to_json())
    return [json.loads(chunk.to_json()) for chunk in chunks], whole


@given(cuts=st.lists(st.integers(0, len(ANSWER)), max_size=20))
def test_chunks_add_up_to_the_whole_however_the_output_is_cut(cuts):
    pieces = [ANSWER[a:b] for a, b in pairwise(sorted({0, len(ANSWER), *cuts}))]
    chunks, whole = written(pieces)
    messages = [chunk["message"] for chunk in chunks]
    assert "".join(message["content"] for message in messages) == "yes"
    assert "".join(message.get("thinking", "") for message in messages) == "fox"
    (calls,) = [message["tool_calls"] for message in messages if "tool_calls" in message]
    (call,) = calls
    assert call["function"] == {"index": 0, "name": "now", "arguments": {"a": [1, {"b": None}]}}
    assert whole["message"] == {
        "role": "assistant",
        "content": "yes",
        "thinking": "fox",
        "tool_calls": [call],
    }
    tokens = [one["token"] for chunk in chunks for one in chunk.get("logprobs", ())]
    assert tokens == [*pieces, "end"] == [one["token"] for one in whole["logprobs"]]


def test_counts_and_durations_come_with_the_last_chunk_only():
    chunks, whole = written(["a", "b"])
    assert [chunk["done"] for chunk in chunks] == [False, False, True]
    counts = ("prompt_eval_count", "eval_count", "done_reason", "load_duration")
    for last in (chunks[-1], whole):
        assert [last[name] for name in counts] == [9, 3, "stop", 0]
        parts = last["prompt_eval_duration"] + last["eval_duration"]
        assert abs(last["total_duration"] - parts) <= 1  # each is rounded to ns
    assert not {*counts, "total_duration"} & chunks[0].keys()


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_generation_has_its_text_in_response(finish):
    chunks, whole = written(["<think>x</think>", "yes"], OllamaGenerateWriter, finish)
    assert "".join(chunk["response"] for chunk in chunks) == whole["response"] == "yes"
    assert "".join(chunk.get("thinking", "") for chunk in chunks) == whole["thinking"] == "x"
    assert "message" not in whole
    assert chunks[-1]["done_reason"] == whole["done_reason"] == finish


def test_call_that_is_cut_has_what_is_complete_of_it():
    chunks, whole = written(
        ['<tool_call>\n{"name": "now", "arguments": {"a": 1, "b": "x'], finish="length"
    )
    assert whole["done_reason"] == "length"
    calls = whole["message"].get("tool_calls", [])
    assert all(isinstance(call["function"]["arguments"], dict) for call in calls)
    assert [c["message"].get("tool_calls", []) for c in chunks if "tool_calls" in c["message"]] == (
        [calls] if calls else []
    )


def test_output_that_ends_too_early_is_an_error():
    context = ResponseContext(ResponseIdentity("ollama-1", 1700000000, "m"), ((0,) * 9,))
    one = OllamaChatWriter(context, ChatParsing())
    one.feed(0, OutputDelta("a", (7,)))
    with pytest.raises(EngineDeadError):
        one.finish()
