"""Blocks of a message, from outputs that are cut in any way."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen3_a8w8.anthropic.writer import MessagesWriter
from qwen3_a8w8.errors import CapacityError, EngineDeadError
from qwen3_a8w8.openai.chat.choice import ChatParsing
from qwen3_a8w8.openai.response import ResponseContext, ResponseIdentity
from qwen3_a8w8.text.outputs import OutputDelta
from qwen3_a8w8.text.reasoning import ReasoningState

CALL = '<tool_call>\n{"name": "now", "arguments": {"a": 1}}\n</tool_call>'


def writer(*, is_streamed=True, parsing=None):
    identity = ResponseIdentity("msg_1", 1700000000, "m")
    context = ResponseContext(identity, ((0,) * 9,), is_streamed=is_streamed)
    return MessagesWriter(context, parsing or ChatParsing(has_tools=True))


def written(texts, finish="stop", stop_reason=None, num_cached=0, **options):
    """All events of an answer that comes in these pieces, and the whole message."""
    one = writer(**options)
    events = list(one.begin())
    for text in texts:
        events += one.feed(0, OutputDelta(text, (7,), num_cached_tokens=num_cached))
        num_cached = 0  # reported once
    events += one.feed(0, OutputDelta("", (7,), (), finish, stop_reason))
    events += one.finish()
    message = json.loads(one.whole(events).to_json())
    return [json.loads(event.to_json()) for event in events], message


def blocks_of(events):
    """The blocks as clients add them up, and a check that one is open at a time."""
    blocks, is_open = [], False
    for event in events:
        if event["type"] == "content_block_start":
            assert not is_open
            assert event["index"] == len(blocks)
            blocks.append({**event["content_block"], "json": ""})
            is_open = True
        elif event["type"] == "content_block_delta":
            assert is_open
            assert event["index"] == len(blocks) - 1
            kind, text = event["delta"]["type"], event["delta"]
            if kind == "input_json_delta":
                blocks[-1]["json"] += text["partial_json"]
            else:
                name = kind.removesuffix("_delta")
                blocks[-1][name] += text[name]
        elif event["type"] == "content_block_stop":
            assert is_open
            is_open = False
    assert not is_open
    for block in blocks:
        arguments = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = json.loads(arguments)
    return blocks


def without_ids(blocks):
    return [{key: value for key, value in block.items() if key != "id"} for block in blocks]


NOW = {"type": "tool_use", "name": "now", "input": {"a": 1}}


def text(value):
    return {"type": "text", "text": value}


WITHOUT_THINKING = [
    ("the dog", [text("the dog")]),
    ("\n    return 1", [text("\n    return 1")]),
    (" of France ", [text(" of France ")]),
    (f"{CALL}\n{CALL}", [NOW, NOW]),
    (f"yes\n{CALL}", [text("yes"), NOW]),
    ("", []),
    (" \n", []),
]
THINKING = [
    (
        f"<think>\nfox\n</think>\n\nyes\n{CALL}",
        [{"type": "thinking", "thinking": "fox", "signature": ""}, text("yes"), NOW],
    ),
]
# In a turn that is continued, text begins with the first character.
CASES = [(ReasoningState.CONTENT, *case) for case in WITHOUT_THINKING]
CASES += [(ReasoningState.UNDECIDED, *case) for case in THINKING + WITHOUT_THINKING[3:]]


def check_cut(case, places):
    state, output, expected = case
    places = sorted({0, len(output), *(place for place in places if place < len(output))})
    pieces = [output[a:b] for a, b in pairwise(places)]
    parsing = ChatParsing(reasoning=state, has_tools=True)
    events, streamed = written(pieces, parsing=parsing)
    assert without_ids(blocks_of(events)) == expected
    assert without_ids(streamed["content"]) == expected
    _, whole = written(pieces, parsing=parsing, is_streamed=False)
    assert without_ids(whole["content"]) == expected


@given(case=st.sampled_from(CASES), places=st.lists(st.integers(0, 90), max_size=12))
def test_blocks_do_not_depend_on_how_the_output_is_cut(case, places):
    check_cut(case, places)


@pytest.mark.parametrize("case", CASES)
def test_blocks_are_the_same_with_every_character_alone(case):
    check_cut(case, range(90))


@pytest.mark.parametrize(
    ("texts", "finish", "stop", "expected"),
    [
        (["a"], "stop", None, ("end_turn", None)),
        (["a"], "length", None, ("max_tokens", None)),
        (["a"], "stop", "END", ("stop_sequence", "END")),
        (["a"], "stop", 151645, ("end_turn", None)),
        ([CALL], "stop", None, ("tool_use", None)),
        ([CALL, CALL[:40]], "length", None, ("max_tokens", None)),
    ],
)
def test_stop_reasons(texts, finish, stop, expected):
    events, message = written(texts, finish, stop)
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    delta = events[-2]["delta"]
    assert (delta["stop_reason"], delta["stop_sequence"]) == expected
    assert (message["stop_reason"], message["stop_sequence"]) == expected


def test_cached_tokens_are_not_counted_as_input():
    events, message = written(["a", "b"], num_cached=4)
    expected = {
        "input_tokens": 5,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": 3,
    }
    assert events[-2]["usage"] == message["usage"] == expected
    assert events[0]["message"]["usage"]["output_tokens"] == 0


def test_prefilled_turn_goes_on_without_a_think_block():
    parsing = ChatParsing(reasoning=ReasoningState.CONTENT)
    assert written([" of", " France"], parsing=parsing)[1]["content"] == [text(" of France")]


def test_ends_with_an_error_where_the_output_does():
    one = writer()
    one.begin()
    one.feed(0, OutputDelta("a", (7,)))
    with pytest.raises(EngineDeadError):
        one.finish()
    (event,) = one.fail(CapacityError("full"), None)
    assert event.event_name == "error"
    assert json.loads(event.to_json()) == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "full"},
    }
