"""Anthropic's Messages API over a fake engine; the real client runs in tests/clients."""

import json

import pytest

from deployments.settings import SecuritySettings
from tests.support.http_application import running_http

USER = {"role": "user", "content": "hi"}
TOOL = {"name": "now", "description": "time", "input_schema": {"type": "object"}}
CALL = '<tool_call>\n{"name": "now", "arguments": {"a": 1}}\n</tool_call>'


async def message(http, **fields):
    body = {"model": "tiny", "max_tokens": 60, "messages": [USER], "seed": 7} | fields
    answer = await http.post("/v1/messages", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def events(http, **fields):
    body = {"max_tokens": 60, "messages": [USER], "seed": 7, "stream": True} | fields
    answer = await http.post("/v1/messages", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    frames = [frame.split("\n") for frame in answer.text.strip().split("\n\n")]
    parsed = [(name[7:], json.loads(data[6:])) for name, data in frames]
    assert all(name == data["type"] for name, data in parsed)
    return [data for _, data in parsed]


def folded(stream):
    """The message that a client's accumulator would build."""
    (start,) = (e["message"] for e in stream if e["type"] == "message_start")
    blocks = {}
    for event in stream:
        if event["type"] == "content_block_start":
            blocks[event["index"]] = dict(event["content_block"])
        elif event["type"] == "content_block_delta":
            block, delta = blocks[event["index"]], event["delta"]
            kind = delta["type"].removesuffix("_delta")
            key = {"input_json": "partial_json"}.get(kind, kind)
            block[key] = block.get(key, "") + delta[key]
        elif event["type"] == "message_delta":
            start |= event["delta"] | {"usage": event["usage"]}
    for block in blocks.values():
        if block["type"] == "tool_use":
            block["input"] = json.loads(block.pop("partial_json"))
    return start | {"content": [blocks[index] for index in sorted(blocks)]}


async def test_message_is_that_of_the_chat_completion(http, say):
    say("the dog")
    body = await message(http, system="be brief")
    assert body["id"].startswith("msg_")
    assert (body["type"], body["role"], body["model"]) == ("message", "assistant", "tiny")
    assert body["content"] == [{"type": "text", "text": "the dog"}]
    assert (body["stop_reason"], body["stop_sequence"]) == ("end_turn", None)
    messages = [{"role": "system", "content": "be brief"}, USER]
    thinking = {"enable_thinking": False}
    chat = {"messages": messages, "chat_template_kwargs": thinking}
    prompt = (await http.post("/v1/chat/completions/render", json=chat)).json()
    usage = body["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == prompt["count"]
    counted = await http.post(
        "/v1/messages/count_tokens", json={"messages": [USER], "system": "be brief"}
    )
    assert counted.json() == {"input_tokens": prompt["count"]}


@pytest.mark.parametrize(
    ("text", "fields", "kinds", "stop_reason"),
    [
        ("the dog", {}, ["text"], "end_turn"),
        (
            f"<think>\nfox\n</think>\n\nyes\n{CALL}",
            {"tools": [TOOL], "thinking": {"type": "adaptive"}, "max_tokens": 150},
            ["thinking", "text", "tool_use"],
            "tool_use",
        ),
        (
            f"{CALL}\n{CALL}",
            {"tools": [TOOL], "tool_choice": {"type": "any"}, "max_tokens": 150},
            ["tool_use", "tool_use"],
            "tool_use",
        ),
        (
            CALL,
            {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "now"}, "max_tokens": 150},
            ["tool_use"],
            "tool_use",
        ),
        ("the dog and the fox", {"stop_sequences": ["and"]}, ["text"], "stop_sequence"),
        ("the dog and the fox", {"max_tokens": 3}, ["text"], "max_tokens"),
    ],
)
async def test_stream_folds_to_the_whole_message(http, say, text, fields, kinds, stop_reason):
    say(text)
    stream = await events(http, **fields)
    assert stream[0]["type"] == "message_start"
    assert stream[0]["message"]["content"] == []
    assert [e["type"] for e in stream[-2:]] == ["message_delta", "message_stop"]
    streamed, whole = folded(stream), await message(http, **fields)
    assert [block["type"] for block in whole["content"]] == kinds
    assert (whole["stop_reason"], streamed["stop_reason"]) == (stop_reason, stop_reason)
    assert whole["stop_sequence"] == (fields.get("stop_sequences") or [None])[0]
    for body in (streamed, whole):
        for block in body["content"]:
            if block["type"] == "tool_use":
                assert block.pop("id").startswith("toolu_")
                assert block == {"type": "tool_use", "name": "now", "input": {"a": 1}}
    assert streamed["content"] == whole["content"]
    assert streamed["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


async def test_last_turn_of_the_assistant_is_continued(http, say):
    say(" of France")
    messages = [USER, {"role": "assistant", "content": "The capital"}]
    body = await message(http, messages=messages)
    assert body["content"] == [{"type": "text", "text": " of France"}]


async def test_white_space_at_the_beginning_is_part_of_the_answer(http, say):
    say("\n    return 1")
    messages = [USER, {"role": "assistant", "content": "def one():"}]
    whole, stream = await message(http, messages=messages), await events(http, messages=messages)
    assert whole["content"] == folded(stream)["content"]
    assert whole["content"] == [{"type": "text", "text": "\n    return 1"}]


async def test_tools_of_anthropics_servers_are_left_out_and_named(http):
    tools = [{"type": "web_search_20250305", "name": "web_search"}, TOOL]
    body = {"max_tokens": 3, "messages": [USER], "tools": tools}
    answer = await http.post("/v1/messages", json=body)
    assert answer.headers["x-skipped-tools"] == "web_search_20250305"


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "content[0].type"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_k": -5}, "top_k"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"tools": [{"name": ""}]}, "tools[0].name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool"}, "tools": [TOOL]}, "tool_choice.name"),
        ({"thinking": {"type": "enabled", "budget_tokens": "x"}}, "thinking.budget_tokens"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"messages": [{"role": "assistant", "content": ""}]}, "no text to continue"),
    ],
)
async def test_bad_field_is_named_in_anthropics_format(http, fields, place):
    body = {"max_tokens": 5, "messages": [USER]} | fields
    answer = await http.post("/v1/messages", json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()
    assert error["type"] == "error"
    assert error["error"]["type"] == "invalid_request_error"
    assert place in error["error"]["message"]


async def test_errors_have_anthropics_format(http, engine):
    body = {"max_tokens": 5, "messages": [USER]}
    answer = await http.post("/v1/messages", json=body | {"model": "other"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error")
    answer = await http.get("/v1/messages/nothing")
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error")
    answer = await http.post("/v1/messages", content=b"x" * 30_000)
    assert (answer.status_code, answer.json()["error"]["type"]) == (413, "request_too_large")
    engine.runner.fail_at_step = len(engine.runner.plans) + 2
    stream = await events(http, max_tokens=20, ignore_eos=True)
    assert stream[-1]["type"] == "error"
    assert stream[-1]["error"]["type"] in ("overloaded_error", "api_error")


async def test_key_may_come_in_anthropics_header(model_directory, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("a-secret-key-of-32-characters-xx\n")
    keys.chmod(0o600)
    key = {"x-api-key": "a-secret-key-of-32-characters-xx"}
    body = {"max_tokens": 3, "messages": [USER]}
    security = SecuritySettings(api_key_file=str(keys))
    async with running_http(model_directory, security=security) as http:
        refused = await http.post("/v1/messages", json=body)
        assert (refused.status_code, refused.json()["error"]["type"]) == (
            401,
            "authentication_error",
        )
        assert (await http.post("/v1/messages", json=body, headers=key)).status_code == 200
        assert (await http.post("/messages", json=body, headers=key)).status_code == 200
        for path in ("/v1/models", "/api/tags", "/v1/messages_of_others"):
            assert (await http.get(path, headers=key)).status_code == 401
