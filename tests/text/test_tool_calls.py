import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen3_a8w8.text.tool_calls import CallEnd, CallPart, ToolCallParser
from tests.support.json_values import JSON_OBJECTS
from tests.support.tool_calls import calls_of

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
EMPTY = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


def run(pieces, *, is_cut=False):
    """All parts of an answer that comes in pieces."""
    parser = ToolCallParser(lambda: "call_x")
    parts = [part for piece in pieces for part in parser.feed(piece)]
    parts += parser.finish(is_cut=is_cut)
    assert parser.num_calls == sum(p.end is CallEnd.WHOLE for p in parts if is_call(p))
    return parts


def is_call(part):
    return isinstance(part, CallPart)


def content_of(parts):
    return "".join(part for part in parts if isinstance(part, str))


def streamed(parts):
    """What a client puts together: (name, arguments, how it ended) by index; checks the order."""
    calls = []
    for part in filter(is_call, parts):
        assert part.is_first == (part.index == len(calls))
        if part.is_first:
            assert all(call[2] for call in calls), "one call is open at a time"
            calls.append([part.name, "", None])
        call = calls[part.index]
        assert (call[0], call[2]) == (part.name, None)
        call[1] += part.arguments
        call[2] = part.end
    assert all(end for _, _, end in calls)
    return [tuple(call) for call in calls]


def outcome(pieces, *, is_cut=False):
    parts = run(pieces, is_cut=is_cut)
    return content_of(parts), streamed(parts)


def is_json(text):
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


OSLO = ("get_weather", '{"city": "Oslo"}')
TAG_INSIDE = '<tool_call>{"name": "f", "arguments": {"s": "a</tool_call>b<tool_call>"}}</tool_call>'
BAD_TAIL = '<tool_call>{"name": "f", "arguments": {"a": 1}]</tool_call>'
NO_BRACE = '<tool_call>{"name": "f", "arguments": {"a": {"b": 2}}\n</tool_call>'
NO_CLOSE = '<tool_call>{"name": "f", "arguments": {"a": 1}}'
TWICE = '<tool_call>{"name": "f", "arguments": {"a": 1}, "name": "g"}</tool_call>'
OPEN_STRING = '<tool_call>{"name": "f", "arguments": {"a": "b}}</tool_call>'
CASES = [
    ("plain text\n", "plain text\n", []),
    (CALL, "", [OSLO]),
    (f"Let me look.\n{CALL}", "Let me look.", [OSLO]),
    (f"{CALL}\n{EMPTY}\n", "", [OSLO, ("now", "{}")]),
    (f"{CALL}\n then  more text", "then  more text", [OSLO]),
    (TAG_INSIDE, "", [("f", '{"s": "a</tool_call>b<tool_call>"}')]),
    ('<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
    (
        '<tool_call>{"arguments": {"a": [1, {}]}, "x": {"name": 1}, "name": "f"}</tool_call>',
        "",
        [("f", '{"a": [1, {}]}')],
    ),
    ('<tool_call>{"na\\u006de": "\\u00e9", "arguments": {}}</tool_call>', "", [("é", "{}")]),
    (
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"\\u00e9\\\\n\\"} "}</tool_call>',
        "",
        [("f", '{"a": "é\\n"}')],
    ),
    (
        '<tool_call>{"name": "f", "arguments": {"t": "a\nb"}}</tool_call>',
        "",
        [("f", '{"t": "a\\nb"}')],
    ),
    (
        '<tool_call>{"name":"f","arguments":{ "\\ud83d\\ude42" :"🙂\\"}",\n"a":{"b":[{}]} } }'
        "</tool_call>",
        "",
        [("f", '{ "\\ud83d\\ude42" :"🙂\\"}",\n"a":{"b":[{}]} }')],
    ),
    ("a <tool", "a <tool", []),
    ("a\n<tool_call>\n{'name'}\n</tool_call> b", "a\n<tool_call>\n{'name'}\n</tool_call> b", []),
    ('<tool_call>\n{"name": "f", "argu', '<tool_call>\n{"name": "f", "argu', []),
    ('<tool_call>{"arguments": {}}</tool_call>', '<tool_call>{"arguments": {}}</tool_call>', []),
    ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>',) * 2 + ([],),
    ('<tool_call>{"name": "f", "arguments": null}</tool_call>',) * 2 + ([],),
    ('<tool_call>{"name": "f", "arguments": "[]"}</tool_call>',) * 2 + ([],),
    ('<tool_call>{"name": "", "arguments": {}}</tool_call>',) * 2 + ([],),
    ('<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>',) * 2 + ([],),
    (f"<tool_call>{{bad}}</tool_call>{CALL}", "<tool_call>{bad}</tool_call>", [OSLO]),
    (f"<tool_call>{CALL}", "<tool_call>", [OSLO]),
    (f'<tool_call>{{"a</tool_call>\n{CALL}', '<tool_call>{"a</tool_call>', [OSLO]),
    ("<tool_call>" + "[" * 100_000 + "</tool_call>",) * 2 + ([],),
]
# Malformed after the start of the arguments: (text, arguments emitted until then).
BROKEN = [
    (BAD_TAIL, '{"a": 1'),
    (NO_BRACE, '{"a": {"b": 2}'),
    (NO_CLOSE, '{"a": 1'),
    (TWICE, '{"a": 1'),
    (OPEN_STRING, '{"a": "b}}</tool_call>'),
    ('<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>', '{"x": '),
    ('<tool_call>{"name": "f", "arguments": {"x": 1}}} </tool_call>', '{"x": 1'),
]


@pytest.mark.parametrize(("text", "content", "calls"), CASES)
def test_whole_text_gives_content_and_calls(text, content, calls):
    parts = run([text])
    assert content_of(parts) == content
    assert [(call.name, call.arguments) for call in calls_of(parts)] == calls
    assert streamed(parts) == [(*call, CallEnd.WHOLE) for call in calls]


@pytest.mark.parametrize(("text", "content", "calls"), CASES[:-1])
def test_single_characters_give_the_same(text, content, calls):
    assert outcome(text) == (content, [(*call, CallEnd.WHOLE) for call in calls])


@pytest.mark.parametrize(("text", "emitted"), BROKEN)
def test_call_that_breaks_later_is_text_and_its_arguments_are_never_json(text, emitted):
    parts = run(text)
    assert content_of(parts) == text
    assert streamed(parts) == [("f", emitted, CallEnd.MALFORMED)]
    assert not is_json(emitted)
    assert calls_of(parts) == []


def test_good_call_behind_a_broken_one_has_the_next_index():
    parts = run(f"{BAD_TAIL}\n{CALL}")
    assert content_of(parts) == BAD_TAIL
    assert [call[2] for call in streamed(parts)] == [CallEnd.MALFORMED, CallEnd.WHOLE]
    assert [(call.name, call.arguments) for call in calls_of(parts)] == [OSLO]


@pytest.mark.parametrize("length", range(len(CALL)))
def test_answer_cut_within_a_call_keeps_what_there_is_of_it(length):
    content, calls = outcome(CALL[:length], is_cut=True)
    begin = CALL.index("{", 13)
    if length <= begin:
        assert (content, calls) == (CALL[:length], [])
    else:
        arguments = CALL[begin : min(length, CALL.index("}}") + 1)]
        assert (content, calls) == ("", [("get_weather", arguments, CallEnd.CUT)])
        (call,) = calls_of(run([CALL[:length]], is_cut=True))
        assert call.arguments == arguments


PIECES = [
    CALL,
    EMPTY,
    TAG_INSIDE,
    "\n",
    " a",
    "<tool_call>",
    "</tool_call>",
    "<too",
    '{"name": "f"',
]
PIECES += [', "arguments": ', '{"a": "', "}", *(text for text, _ in BROKEN)]


def answer(pieces, is_cut):
    """What is the same however the text was cut: a malformed call may never have been emitted."""
    parts = run(pieces, is_cut=is_cut)
    for _, arguments, end in streamed(parts):
        assert end is not CallEnd.MALFORMED or not is_json(arguments)
    emitted = [call[:2] for call in streamed(parts) if call[2] is not CallEnd.MALFORMED]
    calls = [(call.name, call.arguments) for call in calls_of(parts)]
    assert emitted == calls
    return content_of(parts), calls


@given(st.lists(st.sampled_from(PIECES), max_size=6), st.booleans(), st.data())
def test_any_cut_gives_the_same(pieces, is_cut, data):
    text = "".join(pieces)
    places = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    cut = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    assert answer(cut, is_cut) == answer([text], is_cut) == answer(text, is_cut)


@given(
    st.lists(JSON_OBJECTS, min_size=1, max_size=3),
    st.booleans(),
    st.sampled_from([None, 2]),
    st.booleans(),
    st.integers(1, 7),
)
def test_arguments_are_emitted_byte_for_byte_as_written(
    objects, is_ascii, indent, is_name_first, step
):
    written = [json.dumps(value, ensure_ascii=is_ascii, indent=indent) for value in objects]
    order = '"name": "f", "arguments": %s' if is_name_first else '"arguments": %s, "name": "f"'
    text = "\n".join(
        "<tool_call>\n{" + order.replace("%s", one) + "}\n</tool_call>" for one in written
    )
    parts = run([text[i : i + step] for i in range(0, len(text), step)])
    assert streamed(parts) == [("f", one, CallEnd.WHOLE) for one in written]
    assert [call.arguments for call in calls_of(parts)] == written
    assert content_of(parts) == ""


def test_call_is_emitted_while_it_is_generated():
    parser = ToolCallParser(lambda: "call_1")

    def updates(text):
        return [
            (part.is_first, part.arguments, part.end) if is_call(part) else part
            for part in parser.feed(text)
        ]

    assert updates('So.\n<tool_call>\n{"name": "f') == ["So."]
    assert updates('", "arguments": ') == []
    assert updates('{"a') == [(True, '{"a', None)]
    assert updates('": "x') == [(False, '": "x', None)]
    assert updates('y"') == [(False, 'y"', None)]
    assert updates("}") == []
    assert updates("}\n</tool_") == []
    assert updates("call>") == [(False, "}", CallEnd.WHOLE)]
    assert updates("\n" + CALL) == [(True, '{"city": "Oslo"}', CallEnd.WHOLE)]


def test_text_is_given_as_it_arrives():
    parser = ToolCallParser()
    assert [parser.feed(piece) for piece in ["a", " b\n", "c <", "x"]] == [
        ["a"],
        [" b"],
        ["\nc "],
        ["<x"],
    ]


def test_ids_have_openais_format():
    parser = ToolCallParser()
    first, second = parser.feed(CALL + CALL)
    assert first.call_id.startswith("call_")
    assert first.call_id != second.call_id


@pytest.mark.parametrize("length", range(1, len('<tool_call>\n{"name": "now", "arguments": ')))
def test_required_call_that_is_cut_before_its_arguments_leaves_no_markup(length):
    parser = ToolCallParser(is_required=True)
    assert [*parser.feed(EMPTY[:length]), *parser.finish(is_cut=True)] == []
    parser = ToolCallParser(is_required=True)
    parts = [*parser.feed(f"{CALL}\n{EMPTY[:length]}"), *parser.finish(is_cut=True)]
    assert content_of(parts) == ""
    assert [call.name for call in calls_of(parts)] == ["get_weather"]


def test_call_of_a_tool_that_was_not_offered_is_text():
    parser = ToolCallParser(names={"now"})
    turned = '<tool_call>\n{"arguments": {"a": 1}, "name": "then"}\n</tool_call>'
    parts = [*parser.feed(f"{CALL}\n{EMPTY}\n{turned}"), *parser.finish(is_cut=False)]
    assert content_of(parts) == f"{CALL}\n{turned}".replace(f"\n{turned}", turned)
    assert [call.name for call in calls_of(parts)] == ["now"]
    assert parser.num_calls == 1
