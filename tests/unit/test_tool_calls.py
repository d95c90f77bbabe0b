import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen3_a8w8.text.tool_calls import ToolCallParser

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
EMPTY = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


def parse(parts):
    parser = ToolCallParser(lambda: "call_x")
    deltas = [*(parser.feed(part) for part in parts), parser.finish()]
    content = "".join(delta.content for delta in deltas)
    calls = [call for delta in deltas for call in delta.calls]
    assert [call.index for call in calls] == list(range(len(calls)))
    return content, [(call.name, json.loads(call.arguments)) for call in calls]


OSLO = ("get_weather", {"city": "Oslo"})
TAG_INSIDE = '<tool_call>{"name": "f", "arguments": {"s": "a</tool_call>b"}}</tool_call>'
CASES = [
    ("plain text\n", "plain text\n", []),
    (CALL, "", [OSLO]),
    (f"Let me look.\n{CALL}", "Let me look.", [OSLO]),
    (f"{CALL}\n{EMPTY}\n", "", [OSLO, ("now", {})]),
    (f"{CALL}\n then  more text", "then  more text", [OSLO]),
    (TAG_INSIDE, "", [("f", {"s": "a</tool_call>b"})]),
    ('<tool_call>{"name": "f"}</tool_call>', "", [("f", {})]),
    ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("f", {"a": 1})]),
    (
        '<tool_call>{"name": "f", "arguments": {"t": "a\nb"}}</tool_call>',
        "",
        [("f", {"t": "a\nb"})],
    ),
    ("a <tool", "a <tool", []),
    ("a\n<tool_call>\n{'name'}\n</tool_call> b", "a\n<tool_call>\n{'name'}\n</tool_call> b", []),
    ('<tool_call>\n{"name": "f", "argu', '<tool_call>\n{"name": "f", "argu', []),
    ('<tool_call>{"arguments": {}}</tool_call>', '<tool_call>{"arguments": {}}</tool_call>', []),
    ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>',) * 2 + ([],),
    ('<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>',) * 2 + ([],),
    (f"<tool_call>{{bad}}</tool_call>{CALL}", "<tool_call>{bad}</tool_call>", [OSLO]),
    (f'<tool_call>{{"a</tool_call>\n{CALL}', '<tool_call>{"a</tool_call>', [OSLO]),
    ("<tool_call>" + "[" * 100_000 + "</tool_call>",) * 2 + ([],),
]


@pytest.mark.parametrize(("text", "content", "calls"), CASES)
def test_whole_text_gives_content_and_calls(text, content, calls):
    assert parse([text]) == (content, calls)


@pytest.mark.parametrize(("text", "content", "calls"), CASES[:-1])
def test_single_characters_give_the_same(text, content, calls):
    assert parse(list(text)) == (content, calls)


@given(st.lists(st.sampled_from([CALL, EMPTY, "\n", " a", "<tool_call>", "</tool_call>", "<too"])))
def test_any_cut_gives_the_same(parts):
    text = "".join(parts)
    assert parse(parts) == parse([text]) == parse(list(text))


def test_call_is_given_as_soon_as_it_is_closed():
    parser = ToolCallParser()
    assert parser.feed(CALL[:-1]).calls == ()
    (call,) = parser.feed(">").calls
    assert (call.name, call.arguments) == ("get_weather", '{"city": "Oslo"}')
    assert call.call_id.startswith("call_")


def test_text_is_given_as_it_arrives():
    parser = ToolCallParser()
    assert [parser.feed(piece).content for piece in ["a", " b\n", "c <", "x"]] == [
        "a",
        " b",
        "\nc ",
        "<x",
    ]
