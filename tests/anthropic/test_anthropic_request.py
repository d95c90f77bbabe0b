"""Conversion of Anthropic's bodies to chat requests."""

import json

import pytest

from qwen3_a8w8.anthropic.errors import message_error
from qwen3_a8w8.anthropic.request import CountTokensRequest, MessagesRequest
from qwen3_a8w8.errors import EngineDeadError, InvalidRequestError
from qwen3_a8w8.openai.request import parse_request, validate_request

USER = {"role": "user", "content": "hi"}
TOOL = {"name": "now", "description": "time", "input_schema": {"type": "object"}}
CALLED = {
    "role": "assistant",
    "content": [{"type": "tool_use", "id": "1", "name": "now", "input": {}}],
}
BILLS = "x-anthropic-billing-header: cc_version=2.1.100; cch=%s;"


def chat_of(**fields):
    body = {"max_tokens": 5, "messages": [USER]} | fields
    return validate_request(MessagesRequest, body).to_chat()


def test_conversation_becomes_chat_messages():
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "c"},
                {"type": "tool_use", "id": "1", "name": "now", "input": {"x": "é"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "1",
                    "content": [{"type": "text", "text": "r"}],
                },
                {"type": "text", "text": "d", "cache_control": {"type": "ephemeral"}},
            ],
        },
    ]
    chat = chat_of(messages=messages, system=[{"type": "text", "text": "s"}], tools=[TOOL])
    assert chat.template_messages() == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a\nb"},
        {
            "role": "assistant",
            "content": "c",
            "reasoning_content": "t",
            "tool_calls": [
                {
                    "id": "1",
                    "type": "function",
                    "function": {"name": "now", "arguments": {"x": "é"}},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "r"},
        {"role": "user", "content": "d"},
    ]
    assert chat.template_tools() == [
        {
            "type": "function",
            "function": {"name": "now", "description": "time", "parameters": {"type": "object"}},
        }
    ]


@pytest.mark.parametrize(
    ("thinking", "is_thinking", "budget"),
    [
        (None, False, None),
        ({"type": "disabled"}, False, None),
        ({"type": "adaptive"}, True, None),
        ({"type": "enabled", "budget_tokens": 1024}, True, 1024),
    ],
)
def test_thinking_is_off_unless_asked_for(thinking, is_thinking, budget):
    chat = chat_of(thinking=thinking)
    assert chat.template_kwargs()["enable_thinking"] is is_thinking
    assert chat.max_thinking_tokens == budget


def test_fields_have_their_counterparts():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    chat = chat_of(
        stop_sequences=["x"],
        top_k=5,
        tools=[TOOL],
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
        output_config={"format": {"type": "json_schema", "schema": schema}},
    )
    assert (chat.stop, chat.top_k, chat.parallel_tool_calls) == (["x"], 5, False)
    assert chat.response_format.schema_value == schema
    assert chat_of(tools=[TOOL], tool_choice={"type": "any"}).tool_choice == "required"
    prefilled = chat_of(messages=[USER, {"role": "assistant", "content": "{"}])
    assert prefilled.continue_final_message


def result(**fields):
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1"} | fields]}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, ""),
        ({"content": "12"}, "12"),
        ({"content": [{"type": "text", "text": "1"}, {"type": "text", "text": "2"}]}, "1\n2"),
        ({"content": "no clock", "is_error": True}, "Error: no clock"),
        ({"content": "12", "is_error": False}, "12"),
    ],
)
def test_result_of_a_tool_says_when_it_failed(fields, text):
    chat = chat_of(messages=[USER, CALLED, result(**fields)], tools=[TOOL])
    assert chat.template_messages()[-1] == {"role": "tool", "tool_call_id": "1", "content": text}


@pytest.mark.parametrize(
    "system_of",
    [
        lambda line: f"{line}\nBe brief.\nBe kind.",
        lambda line: [
            {"type": "text", "text": line},
            {"type": "text", "text": "Be brief.\nBe kind."},
        ],
    ],
)
def test_line_for_bills_changes_no_prompt(system_of):
    first, second = (chat_of(system=system_of(BILLS % mark)) for mark in ("36ee5", "0aaa9"))
    assert first.template_messages()[0] == {"role": "system", "content": "Be brief.\nBe kind."}
    assert first.template_messages() == second.template_messages()
    assert [m["role"] for m in chat_of(system=BILLS % "x").template_messages()] == ["user"]
    kept = f"Explain this: {BILLS}"
    assert chat_of(system=kept).template_messages()[0]["content"] == kept


def test_traces_of_tools_that_others_ran_are_left_out():
    kinds = ("server_tool_use", "tool_search_tool_result", "mcp_tool_listing", "fallback")
    traces = [{"type": kind, "anything": [1]} for kind in kinds]
    said = {"role": "assistant", "content": [*traces, {"type": "text", "text": "found"}]}
    assert chat_of(messages=[USER, said, USER]).template_messages()[1] == {
        "role": "assistant",
        "content": "found",
    }


def test_sets_of_tools_need_no_name_and_are_named_by_type():
    body = {
        "max_tokens": 5,
        "messages": [USER],
        "tools": [{"type": "mcp_toolset", "mcp_server_name": "x"}, TOOL],
    }
    request = validate_request(MessagesRequest, body)
    assert request.skipped_tools == ("mcp_toolset",)
    assert [function.name for function in request.to_chat().functions] == ["now"]


def test_budget_of_nothing_is_no_thinking_and_template_variables_win():
    none = chat_of(thinking={"type": "enabled", "budget_tokens": 0})
    assert none.template_kwargs() == {"enable_thinking": False}
    asked = chat_of(chat_template_kwargs={"enable_thinking": True, "x": 1})
    assert asked.template_kwargs() == {"enable_thinking": True, "x": 1}


def test_counting_needs_no_max_tokens_and_a_message_does():
    body = json.dumps({"messages": [USER]})
    assert parse_request(CountTokensRequest, body).to_chat().max_tokens is None
    with pytest.raises(InvalidRequestError, match="max_tokens is missing"):
        parse_request(MessagesRequest, body)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n": 2}, "n is 2, which"),
        ({"stop": ["x"]}, "stop is a list, .* use stop_sequences"),
        ({"max_completion_tokens": 3}, "max_completion_tokens is 3, .* use max_tokens"),
        ({"response_format": {"type": "json_object"}}, "use output_config.format"),
        ({"logprobs": True}, "logprobs is true"),
        ({"top_logprobs": 2}, "top_logprobs is 2"),
        ({"reasoning_effort": "high"}, "use thinking"),
        ({"thinking_token_budget": 5}, "use thinking.budget_tokens"),
        ({"parallel_tool_calls": False}, "use tool_choice.disable_parallel_tool_use"),
        ({"continue_final_message": True}, "end messages with the assistant's text"),
        ({"thread": {"type": "continue", "previous_message_id": "x"}}, "thread is an object"),
        ({"chat_template_kwargs": 5}, "chat_template_kwargs is 5; expected an object"),
        ({"messages": [USER, CALLED]}, "messages ends with a tool_use block"),
        ({"messages": [USER, {"role": "assistant", "content": []}]}, "no text to continue"),
        ({"tools": [{"input_schema": {}}]}, r"tools\[0\].name is missing"),
        ({"tools": [{"type": "bash_20250124", "name": ""}]}, r"tools\[0\].name"),
    ],
)
def test_what_a_message_cannot_do_is_refused_by_name(fields, message):
    with pytest.raises(InvalidRequestError, match=message):
        chat_of(**fields)


@pytest.mark.parametrize("kind", ["image", "document", "search_result"])
def test_what_is_not_text_is_refused_by_name_also_in_results(kind):
    block = {"type": kind, "source": {"type": "base64", "data": "aGk="}}
    with pytest.raises(InvalidRequestError, match=f'is "{kind}"; the model reads text') as caught:
        chat_of(messages=[{"role": "user", "content": [{"type": "text", "text": "x"}, block]}])
    assert caught.value.param == "messages[0].content[1].type"
    with pytest.raises(InvalidRequestError) as caught:
        chat_of(messages=[USER, CALLED, result(content=[block])])
    assert caught.value.param == "messages[2].content[0].content[0].type"


def test_values_that_ask_for_nothing_are_no_error():
    fields = {"n": 1, "stop": None, "logprobs": False, "top_logprobs": 0, "thread": None}
    assert chat_of(**fields).num_choices == 1


def test_unknown_defect_tells_nothing():
    assert message_error(RuntimeError("secret"))["error"]["type"] == "api_error"
    assert "secret" not in str(message_error(RuntimeError("secret")))
    assert message_error(EngineDeadError("gone"))["error"]["type"] == "overloaded_error"
