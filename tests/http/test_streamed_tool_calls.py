"""Tool calls in answers, whole and streamed, as the official client puts them together."""

import json

import pytest

TOOLS = [
    {"type": "function", "name": name, "parameters": {"type": "object"}} for name in ("find", "now")
]
CHAT_TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("find", "now")
]
CHAT = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "hi"}],
    "max_completion_tokens": 400,
    "tools": CHAT_TOOLS,
}
RESPONSE = {
    "model": "tiny",
    "input": "hi",
    "max_output_tokens": 400,
    "tools": TOOLS,
}
ARGUMENTS = '{"q": "naïve \\"🙂\\" \\u00e9\\n{[", "deep": {"a": [{}, {"b": [1.5e3, null]}]}}'
ONE = f'<tool_call>\n{{"name": "find", "arguments": {ARGUMENTS}}}\n</tool_call>'
EMPTY = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
TURNED = '<tool_call>\n{"arguments": {"x": [1, 2]}, "name": "find"}\n</tool_call>'
BROKEN = '<tool_call>\n{"name": "find", "arguments": {"x": [1, 2}}\n</tool_call>'
TEXT = "Let me look."


async def whole_and_streamed(client, **fields):
    """The answer whole, and the one that the client's helper puts together; with its pieces."""
    whole = await client.chat.completions.create(**CHAT | fields)
    async with client.chat.completions.stream(**CHAT | fields) as stream:
        chunks = [event.chunk async for event in stream if event.type == "chunk"]
        joined = stream.current_completion_snapshot
    return whole.choices[0], joined.choices[0], [chunk.choices[0].delta for chunk in chunks]


def calls_of(choice):
    return [(call.function.name, call.function.arguments) for call in choice.message.tool_calls]


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (ONE, [("find", ARGUMENTS)]),
        (
            f"{ONE}\n{EMPTY}\n{TURNED}",
            [("find", ARGUMENTS), ("now", "{}"), ("find", '{"x": [1, 2]}')],
        ),
    ],
)
async def test_streamed_calls_are_the_whole_ones_byte_for_byte(client, say, text, calls):
    say(f"{TEXT}\n{text}")
    whole, joined, deltas = await whole_and_streamed(client)
    assert whole.message.content == joined.message.content == TEXT
    assert calls_of(whole) == calls_of(joined) == calls
    assert whole.finish_reason == joined.finish_reason == "tool_calls"
    pieces = [call for delta in deltas for call in delta.tool_calls or ()]
    assert sorted({call.index for call in pieces}) == list(range(len(calls)))
    for index, (name, _) in enumerate(calls):
        first, *others = (call for call in pieces if call.index == index)
        assert (first.function.name, first.type) == (name, "function")
        assert first.id == joined.message.tool_calls[index].id
        assert all(call.id is call.type is call.function.name is None for call in others)
    # Arguments come as they are generated, not in one piece.
    assert len(pieces) > len(ARGUMENTS) / 4


async def test_broken_call_is_text_and_its_streamed_arguments_are_no_json(client, say):
    say(f"{TEXT}\n{BROKEN}")
    whole, joined, _ = await whole_and_streamed(client)
    assert whole.message.content == joined.message.content == f"{TEXT}\n{BROKEN}"
    assert whole.message.tool_calls is None
    assert whole.finish_reason == joined.finish_reason == "stop"
    assert calls_of(joined) == [("find", '{"x": [1, 2')]


@pytest.mark.parametrize("num_tokens", range(20, 60, 3))
async def test_call_cut_by_length_is_the_same_beginning_whole_and_streamed(
    client, say, tokenizer, num_tokens
):
    say(ONE)
    written = tokenizer.decode(tokenizer.encode(ONE)[:num_tokens])
    begun = written.partition('"arguments": ')[2]
    whole, joined, _ = await whole_and_streamed(client, max_completion_tokens=num_tokens)
    assert whole.finish_reason == joined.finish_reason == "length"
    if begun:
        assert calls_of(whole) == calls_of(joined)
        assert begun.startswith(calls_of(whole)[0][1])
        assert not whole.message.content
    else:
        assert whole.message.content == joined.message.content == written
        assert whole.message.tool_calls is None


async def test_stop_string_within_a_call_leaves_text(client, say):
    say(TURNED)
    whole, joined, _ = await whole_and_streamed(client, stop=["2]"])
    assert whole.message.content == joined.message.content == TURNED[: TURNED.index("2]")]
    assert whole.finish_reason == joined.finish_reason == "stop"


async def items_of(client, **fields):
    """Items of the whole response, of the streamed one, and the events of the latter."""
    whole = await client.responses.create(**RESPONSE | fields)
    async with client.responses.stream(**RESPONSE | fields) as stream:
        events = [event async for event in stream]
    return whole.output, events[-1].response.output, events


async def test_response_emits_calls_in_deltas(client, say):
    say(f"{TEXT}\n{ONE}\n{EMPTY}")
    whole, final, events = await items_of(client)
    for items in (whole, final):
        message, first, second = items
        assert message.content[0].text == TEXT
        assert [(i.name, i.arguments, i.status) for i in (first, second)] == [
            ("find", ARGUMENTS, "completed"),
            ("now", "{}", "completed"),
        ]
    kind = "response.function_call_arguments"
    for place, arguments in ((1, ARGUMENTS), (2, "{}")):
        own = [e for e in events if e.type.startswith(kind) and e.output_index == place]
        assert {event.item_id for event in own} == {final[place].id}
        assert "".join(e.delta for e in own if e.type == f"{kind}.delta") == arguments
        assert [e.arguments for e in own if e.type == f"{kind}.done"] == [arguments]
        assert len(own) > 2


async def test_response_with_a_broken_call_has_its_text(client, say):
    say(f"{BROKEN}\n{EMPTY}")
    whole, final, _ = await items_of(client)
    assert [item.type for item in whole] == ["message", "function_call"]
    broken, message, call = final
    assert (broken.status, broken.arguments) == ("incomplete", '{"x": [1, 2')
    assert (call.name, call.status) == ("now", "completed")
    assert message.content[0].text == whole[0].content[0].text == BROKEN


async def test_response_cut_within_a_call_is_incomplete(client, say):
    say(ONE)
    whole, final, events = await items_of(client, max_output_tokens=40)
    assert events[-1].type == "response.incomplete"
    for (call,) in (whole, final):
        assert call.status == "incomplete"
        assert ARGUMENTS.startswith(call.arguments)
        with pytest.raises(json.JSONDecodeError):
            json.loads(call.arguments)
    assert whole[0].arguments == final[0].arguments
    kinds = [event.type for event in events]
    done = kinds.index("response.function_call_arguments.done")
    assert events[done].arguments == final[0].arguments
    assert kinds[done + 1] == "response.output_item.done"


async def test_call_of_a_tool_that_was_not_offered_is_text(client, say):
    other = EMPTY.replace("now", "reboot")
    say(f"{TEXT}\n{other}\n{EMPTY}")
    whole, joined, deltas = await whole_and_streamed(client)
    for choice in (whole, joined):
        assert choice.message.content == f"{TEXT}\n{other}"
        assert calls_of(choice) == [("now", "{}")]
    names = [call.function.name for delta in deltas for call in delta.tool_calls or ()]
    assert "reboot" not in names
    items, _, _ = await items_of(client)
    assert [item.type for item in items] == ["message", "function_call"]
