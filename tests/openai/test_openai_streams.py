"""Our chunks and responses, read by the official client's own types."""

import json
from typing import Any

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import TypeAdapter

from qwen3_a8w8.errors import EngineDeadError
from qwen3_a8w8.openai.chat.choice import ChatParsing
from qwen3_a8w8.openai.chat.writer import ChatWriter
from qwen3_a8w8.openai.completions.writer import CompletionWriter
from qwen3_a8w8.openai.model_card import make_model_card, make_model_list
from qwen3_a8w8.openai.response import ResponseContext, ResponseIdentity
from qwen3_a8w8.text.outputs import LogprobEntry, OutputDelta, TokenLogprob
from qwen3_a8w8.text.reasoning import ReasoningState

CHAT = ResponseIdentity("chatcmpl-1", 1700000000, "m", "fp_1")
TEXT = ResponseIdentity("cmpl-1", 1700000000, "m")
CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


def entry(text, offset, top=()):
    def token(text, logprob):
        return TokenLogprob(0, text, text.encode(), logprob)

    return LogprobEntry(token(text, -0.5), tuple(token(*t) for t in top), offset)


def delta(text, finish=None, logprobs=(), num_tokens=1):
    return OutputDelta(text, (7,) * num_tokens, tuple(logprobs), finish)


def asked(identity, num_prompt_tokens, *, n=1, **options):
    return ResponseContext(identity, ((0,) * num_prompt_tokens,), n, **options)


def official(kind, model) -> Any:
    """The JSON as the client's type, strictly: nothing missing, nothing of a wrong type."""
    return TypeAdapter(kind).validate_json(model.to_json(), strict=True)


def stream_of(texts, finish="stop", parsing=None, **options):
    stream = ChatWriter(asked(CHAT, 5, **options), parsing)
    chunks = [chunk for text in texts for chunk in stream.feed(0, delta(text))]
    chunks += stream.feed(0, delta("", finish))
    return chunks + stream.finish()


def parts(chunks):
    deltas = [json.loads(chunk.to_json())["choices"][0]["delta"] for chunk in chunks]
    return deltas


def test_chat_stream_chunks_are_the_official_ones_to_the_byte():
    chunks = stream_of(["Hel", "lo"])
    begin = '{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m",'
    begin += '"system_fingerprint":"fp_1","choices":[{"index":0,"delta":'
    assert [chunk.to_json() for chunk in chunks] == [
        begin + '{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}',
        begin + '{"content":"Hel"},"logprobs":null,"finish_reason":null}]}',
        begin + '{"content":"lo"},"logprobs":null,"finish_reason":null}]}',
        begin + '{},"logprobs":null,"finish_reason":"stop"}]}',
    ]


def test_chat_stream_every_chunk_is_valid_for_the_official_type():
    texts = ["<think>\nso", "\n</think>\n\nyes ", CALL]
    chunks = stream_of(texts, parsing=ChatParsing(has_tools=True), has_usage=True)
    read = [official(ChatCompletionChunk, chunk) for chunk in chunks]
    assert len({chunk.id for chunk in read}) == 1
    assert [c.choices[0].finish_reason for c in read if c.choices].count("tool_calls") == 1


def test_chat_stream_usage_only_if_asked_for_and_only_in_a_last_chunk_without_choices():
    assert all("usage" not in json.loads(chunk.to_json()) for chunk in stream_of(["a"]))
    raw = [json.loads(chunk.to_json()) for chunk in stream_of(["a"], has_usage=True)]
    assert [chunk["usage"] for chunk in raw[:-1]] == [None] * (len(raw) - 1)
    assert raw[-1]["choices"] == []
    assert raw[-1]["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 2,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_chat_stream_reasoning_and_content_come_in_chunks_of_their_own():
    assert parts(stream_of(["<think>\na", "\n</think>\n\nb"]))[1:] == [
        {"reasoning_content": "a", "reasoning": "a"},
        {"content": "b"},
        {},
    ]


def test_chat_stream_both_parts_in_one_delta_come_in_two_chunks():
    chunks = stream_of(["<think>a</think>b"], "length")
    assert parts(chunks)[1:3] == [{"reasoning_content": "a", "reasoning": "a"}, {"content": "b"}]
    assert chunks[-1].choices[0].finish_reason == "length"


def test_chat_stream_prompt_closed_the_block_gives_content_only():
    chunks = stream_of(["a", "b"], parsing=ChatParsing(reasoning=ReasoningState.CONTENT))
    assert parts(chunks)[1:3] == [{"content": "a"}, {"content": "b"}]


def test_chat_stream_without_reasoning_parsing_leaves_the_tags():
    chunks = stream_of(["<think>a</think>b"], parsing=ChatParsing(reasoning=None))
    assert parts(chunks)[1] == {"content": "<think>a</think>b"}


def test_chat_stream_tool_call_with_empty_arguments_is_kept():
    parsing = ChatParsing(has_tools=True, make_call_id=lambda: "call_1")
    chunks = stream_of(list(CALL) + list(CALL), parsing=parsing)
    calls = [call for part in parts(chunks) for call in part.get("tool_calls", [])]
    function = {"name": "now", "arguments": "{"}
    assert calls == [
        call
        for index in (0, 1)
        for call in (
            {"index": index, "id": "call_1", "type": "function", "function": function},
            {"index": index, "function": {"arguments": "}"}},
        )
    ]
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


SEARCH = '<tool_call>\n{"name": "find", "arguments": {"q": "a\\"é"}}\n</tool_call>'


def test_chat_stream_tool_call_comes_in_deltas_as_it_is_written():
    parsing = ChatParsing(has_tools=True, make_call_id=lambda: "call_1")
    begin = SEARCH.index("{", 13)
    texts = ["Well", SEARCH[:begin], *SEARCH[begin:]]
    chunks = stream_of(texts, parsing=parsing)
    function = {"name": "find", "arguments": "{"}
    assert parts(chunks)[1:-1] == [
        {"content": "Well"},
        {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]},
        *[
            {"tool_calls": [{"index": 0, "function": {"arguments": char}}]}
            for char in '"q": "a\\"é"}'
        ],
    ]
    for chunk in chunks:
        official(ChatCompletionChunk, chunk)
    (call,) = collect(texts, parsing=parsing).choices[0].message.tool_calls
    assert call.function.arguments == '{"q": "a\\"é"}'


def test_chat_stream_tool_call_cut_short_ends_with_what_there_is():
    parsing = ChatParsing(has_tools=True, make_call_id=lambda: "call_1")
    for length in (len(SEARCH) - 3, len(SEARCH) - 20):
        chunks = stream_of(SEARCH[:length], "length", parsing=parsing)
        calls = [call for part in parts(chunks) for call in part.get("tool_calls", [])]
        assert chunks[-1].choices[0].finish_reason == "length"
        whole = collect([SEARCH[:length]], "length", parsing=parsing).choices[0]
        assert (whole.finish_reason, whole.message.content) == ("length", None)
        arguments = SEARCH[SEARCH.index("{", 13) : length][: len('{"q": "a\\"é"}')]
        assert "".join(call["function"]["arguments"] for call in calls) == arguments
        assert whole.message.tool_calls[0].function.arguments == arguments


def test_chat_stream_tool_call_cut_before_its_arguments_is_text():
    chunks = stream_of([SEARCH[:28]], "length", parsing=ChatParsing(has_tools=True))
    assert parts(chunks)[1] == {"content": SEARCH[:28]}
    assert chunks[-1].choices[0].finish_reason == "length"


def test_chat_stream_tool_call_that_breaks_is_text_and_ends_with_stop():
    parsing = ChatParsing(has_tools=True)
    broken = SEARCH.replace("}}", "}")
    chunks = stream_of(broken, parsing=parsing)
    assert "".join(part.get("content", "") for part in parts(chunks)) == broken
    calls = [call for part in parts(chunks) for call in part.get("tool_calls", [])]
    with pytest.raises(json.JSONDecodeError):
        json.loads("".join(call["function"]["arguments"] for call in calls))
    whole = collect(broken, parsing=parsing).choices[0]
    assert "tool_calls" not in whole.message.model_dump(exclude_unset=True)
    assert (whole.message.content, whole.finish_reason) == (broken, "stop")
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_chat_stream_without_tools_leaves_calls_in_the_text():
    assert parts(stream_of([CALL]))[1] == {"content": CALL}


def test_chat_stream_choices_have_their_own_role_and_finish():
    stream = ChatWriter(asked(CHAT, 1, n=2))
    chunks = [*stream.feed(1, delta("a")), *stream.feed(0, delta("b", "stop"))]
    with pytest.raises(EngineDeadError, match="choice 1"):
        stream.finish()
    chunks += stream.feed(1, delta("c", "length"))
    assert stream.finish() == []
    assert stream.feed(1, delta("d", "stop")) == []
    for index, reason in ((0, "stop"), (1, "length")):
        own = [c.choices[0] for c in chunks if c.choices[0].index == index]
        assert [c.delta.role for c in own] == ["assistant", *[None] * (len(own) - 1)]
        assert [c.finish_reason for c in own] == [*[None] * (len(own) - 1), reason]


def test_chat_stream_ended_without_a_finish_reason_is_an_error():
    stream = ChatWriter(asked(CHAT, 1, n=2))
    stream.feed(0, delta("a", "stop"))
    with pytest.raises(EngineDeadError, match="choice 1"):
        stream.finish()


def test_chat_stream_logprobs_of_held_back_text_come_with_the_next_chunk():
    stream = ChatWriter(asked(CHAT, 1))
    first = stream.feed(0, delta("", None, [entry("é", 0)]))
    second = stream.feed(0, delta("éa", None, [entry("a", 1, [("a", -0.5), ("b", -1.0)])]))
    last = stream.feed(0, delta("", "stop", [entry("<|im_end|>", 2)]))
    read = [official(ChatCompletionChunk, c).choices[0] for c in first + second + last]
    assert [c.logprobs and [t.token for t in c.logprobs.content] for c in read] == [
        None,
        ["é", "a"],
        ["<|im_end|>"],
    ]
    assert read[1].logprobs.content[0].bytes == [0xC3, 0xA9]
    assert [t.token for t in read[1].logprobs.content[1].top_logprobs] == ["a", "b"]


def collect(texts, finish="stop", parsing=None):
    writer = ChatWriter(asked(CHAT, 5, is_streamed=False), parsing)
    chunks = writer.feed(0, OutputDelta(token_ids=(), num_cached_tokens=3))
    chunks += [chunk for text in texts for chunk in writer.feed(0, delta(text))]
    chunks += writer.feed(0, delta("", finish, [entry("<|im_end|>", 9)]))
    return writer.whole([*chunks, *writer.finish()])


def test_chat_response_has_all_parts_and_is_valid_for_the_official_type():
    texts = ["<think>\nso", "\n</think>\n\nyes\n", CALL]
    response = collect(texts, parsing=ChatParsing(has_tools=True, make_call_id=lambda: "call_1"))
    read = official(ChatCompletion, response)
    assert json.loads(response.to_json())["choices"][0]["message"] == {
        "role": "assistant",
        "content": "yes",
        "refusal": None,
        "reasoning_content": "so",
        "reasoning": "so",
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
        ],
    }
    assert read.choices[0].finish_reason == "tool_calls"
    assert (read.usage.prompt_tokens, read.usage.completion_tokens) == (5, 4)
    assert read.usage.prompt_tokens_details.cached_tokens == 3


def test_chat_response_content_is_null_beside_calls_and_a_string_otherwise():
    parsing = ChatParsing(has_tools=True)
    assert collect([CALL], parsing=parsing).choices[0].message.content is None
    assert collect([], parsing=parsing).choices[0].message.content == ""
    assert "tool_calls" not in collect(["a"], parsing=parsing).to_json()


def test_chat_response_equals_the_joined_stream():
    texts = ["<think>\na", " b\n</th", "ink>\n\nc", " d"]
    deltas = parts(stream_of(texts))
    message = collect(texts).choices[0].message
    assert "".join(d.get("content", "") for d in deltas) == message.content == "c d"
    joined = "".join(d.get("reasoning_content", "") for d in deltas)
    assert joined == message.reasoning_content == "a b"


def test_completion_stream_chunks_are_the_official_ones_to_the_byte():
    stream = CompletionWriter(asked(TEXT, 2))
    chunks = [*stream.feed(0, delta("")), *stream.feed(0, delta("a"))]
    chunks += [*stream.feed(0, delta("b", "length")), *stream.finish()]
    begin = '{"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"m",'
    begin += '"system_fingerprint":null,"choices":[{"index":0,"text":'
    assert [chunk.to_json() for chunk in chunks] == [
        begin + '"a","logprobs":null,"finish_reason":null}]}',
        begin + '"b","logprobs":null,"finish_reason":"length"}]}',
    ]
    official(Completion, chunks[-1])


def test_completion_stream_usage_chunk_has_no_choices():
    stream = CompletionWriter(asked(TEXT, 2, has_usage=True))
    stream.feed(0, delta("a", "stop", num_tokens=3))
    (chunk,) = stream.finish()
    read = official(Completion, chunk)
    assert (read.choices, read.usage.total_tokens) == ([], 5)


def test_completion_stream_ended_without_a_finish_reason_is_an_error():
    with pytest.raises(EngineDeadError, match="choice 0"):
        CompletionWriter(asked(TEXT, 2)).finish()


def test_completion_response_has_echo_logprobs_and_usage():
    writer = CompletionWriter(asked(TEXT, 6, n=2, is_streamed=False), ["P: ", "Q: "])
    chunks = writer.feed(1, delta("x", "length"))
    chunks += writer.feed(0, delta("a", None, [entry("a", 0, [("b", -0.1), ("a", -0.5)])]))
    chunks += writer.feed(0, delta("c", "stop", [entry("c", 1, [("d", -0.2)])]))
    read = official(Completion, writer.whole([*chunks, *writer.finish()]))
    assert [choice.text for choice in read.choices] == ["P: ac", "Q: x"]
    assert [choice.finish_reason for choice in read.choices] == ["stop", "length"]
    assert read.choices[1].logprobs is None
    logprobs = read.choices[0].logprobs
    assert logprobs.tokens == ["a", "c"]
    assert logprobs.token_logprobs == [-0.5, -0.5]
    assert logprobs.top_logprobs == [{"b": -0.1, "a": -0.5}, {"d": -0.2, "c": -0.5}]
    assert logprobs.text_offset == [3, 4]
    assert (read.usage.prompt_tokens, read.usage.completion_tokens) == (6, 3)


def test_model_list_is_valid_for_the_official_type():
    from openai.types import Model

    models = make_model_list([make_model_card("m", root="m", created=1, max_model_len=40960)])
    raw = json.loads(models.to_json())
    assert raw["object"] == "list"
    model = TypeAdapter(Model).validate_python(raw["data"][0], strict=True)
    assert (model.id, model.object) == ("m", "model")


def test_identities_are_unique_and_carry_the_kind():
    first, second = ResponseIdentity.new("chatcmpl-", "m"), ResponseIdentity.new("chatcmpl-", "m")
    assert first.id != second.id
    assert first.id.startswith("chatcmpl-")
    assert ResponseIdentity.new("cmpl-", "m").id.startswith("cmpl-")
