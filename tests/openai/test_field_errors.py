"""Error messages for invalid fields: the path and the value, in JSON's terms."""

import json

import pytest

from qwen3_a8w8.errors import InvalidRequestError
from qwen3_a8w8.openai.chat.request import ChatRequest
from qwen3_a8w8.openai.request import parse_request, shown
from qwen3_a8w8.openai.responses.request import ResponsesRequest

USER = {"role": "user", "content": "hi"}
ROLES = '"system", "developer", "user", "assistant" or "tool"'
PART = '{"type": "text", "text": "..."}'
CHOICES = 'expected "none", "auto", "required" or {"type": "function", "function": {"name": "..."}}'


def message_of(model, earlier=(), **fields):
    """The message of the error, which begins with its param."""

    def read():
        request = parse_request(model, json.dumps(fields))
        return request.to_chat(list(earlier))  # what a chat request never comes to

    with pytest.raises(InvalidRequestError) as caught:
        read()
    assert str(caught.value).startswith(f"{caught.value.param} ")
    return str(caught.value)


def user(content):
    return {"role": "user", "content": content}


def call(**function):
    return {"role": "assistant", "tool_calls": [{"function": function}]}


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (5, " is 5; expected an object"),
        ({}, ".role is missing; it is required"),
        ({"role": "robot"}, f'.role is "robot"; expected {ROLES}'),
        ({"role": None}, f".role is null; expected {ROLES}"),
        ({"role": "user", "user": 5}, ".content is missing; it is required"),
        (user(None), ".content is null; expected a string or a list of parts"),
        (user({}), ".content is an empty object; expected a string or a list of parts"),
        (user([1]), f".content[0] is 1; expected {PART}"),
        (
            user([{"type": "text", "text": "a"}, {"type": "image_url"}]),
            f'.content[1].type is "image_url"; the model accepts text only, expected {PART}',
        ),
        (
            user([{"text": "a"}]),
            f".content[0].type is missing; the model accepts text only, expected {PART}",
        ),
        (user([{"type": "text"}]), ".content[0].text is missing; expected a string"),
        (user([{"type": "text", "text": 5}]), ".content[0].text is 5; expected a string"),
        (
            {"role": "assistant", "tool_calls": {"a": 1}},
            ".tool_calls is an object; expected a list",
        ),
        (call(), ".tool_calls[0].function.name is missing; it is required"),
        (
            call(name="f", arguments={}),
            ".tool_calls[0].function.arguments is an empty object; expected a string",
        ),
    ],
)
def test_message_is_named_with_its_index_and_field(message, problem):
    assert message_of(ChatRequest, messages=[USER, message]) == f"messages[1]{problem}"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"messages": []}, "messages is an empty list; expected at least 1 entry"),
        ({"stop": {}}, "stop is an empty object; expected a string or a list of strings"),
        ({"stop": ["a", 5]}, "stop[1] is 5; expected a string"),
        ({"logit_bias": {"5": "x"}}, 'logit_bias[5] is "x"; expected a number'),
        ({"max_tokens": 1.5}, "max_tokens is 1.5; expected an integer"),
        ({"max_tokens": -(10**99)}, "max_tokens is a very large integer; expected >= 1"),
        ({"top_logprobs": 21}, "top_logprobs is 21; expected <= 20"),
        ({"stream": 1}, "stream is 1; expected true or false"),
        ({"tools": [5]}, "tools[0] is 5; expected an object"),
        ({"tools": [{"type": 5}]}, "tools[0].type is 5; expected a string"),
        ({"tool_choice": "x"}, f'tool_choice is "x"; {CHOICES}'),
        ({"tool_choice": {"type": "x"}}, f'tool_choice.type is "x"; {CHOICES}'),
        ({"tool_choice": {"type": "function"}}, f"tool_choice.function is missing; {CHOICES}"),
        (
            {"tool_choice": {"type": "function", "function": {"name": ""}}},
            f'tool_choice.function.name is ""; {CHOICES}',
        ),
        ({"response_format": "json"}, 'response_format is "json"; expected an object'),
        (
            {"response_format": {"type": "xml"}},
            'response_format.type is "xml"; expected "text", "json_object" or "json_schema"',
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}},
            "response_format.json_schema.schema is 5; expected an object or true or false",
        ),
        ({"guided_json": 5}, "guided_json is 5; expected an object or true or false or a string"),
    ],
)
def test_field_of_a_chat_request_is_named(fields, message):
    assert message_of(ChatRequest, **{"messages": [USER]} | fields) == message


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input": []}, "input is an empty list; expected at least 1 entry"),
        ({"input": [USER, {"role": "user"}]}, "input[1].content is null; expected a string or a "),
        ({"input": [5]}, "input[0] is 5; expected an object"),
    ],
)
def test_field_of_a_response_request_is_named(fields, message):
    assert message_of(ResponsesRequest, **{"input": "hi"} | fields).startswith(message)


def test_field_of_a_response_request_has_the_name_that_the_client_knows():
    def of(**fields):
        return message_of(ResponsesRequest, **{"input": "hi"} | fields)

    assert of(tools=[{"type": "function"}]) == "tools[0].name is missing; it is required"
    assert of(tool_choice={"type": "x"}) == (
        'tool_choice.type is "x"; expected "none", "auto", "required" or '
        '{"type": "function", "name": "..."}'
    )
    assert of(reasoning={"effort": "huge"}).startswith('reasoning.effort is "huge"; expected')
    assert of(reasoning_effort="huge").startswith('reasoning_effort is "huge"; expected')
    assert of(reasoning_effort="low", reasoning={"effort": "huge"}).startswith("reasoning.effort ")
    tool = {"type": "function", "name": "f"}
    assert of(tools=[tool, tool]).startswith('tools[1].name is "f", which is the name of tools[0]')
    assert of(text={"format": {"type": "json_schema", "schema": 5}}) == (
        "text.format.schema is 5; expected an object or true or false"
    )


def test_item_is_counted_in_the_input_and_not_in_the_whole_conversation():
    message = message_of(
        ResponsesRequest, [USER, USER], input=[USER, {"role": "robot", "content": "x"}]
    )
    assert message.startswith('input[1].role is "robot"; expected')


def test_shown_value_is_json_and_short():
    assert [shown(value) for value in (None, True, "é", 1.5, [], [1], {}, {"a": 1})] == [
        "null",
        "true",
        '"é"',
        "1.5",
        "an empty list",
        "a list",
        "an empty object",
        "an object",
    ]
    assert shown("x" * 10**6) == '"' + "x" * 100 + "..."
