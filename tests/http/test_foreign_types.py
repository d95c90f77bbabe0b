"""Every field of Anthropic's and Ollama's bodies, at every depth, with values of every type."""

import json
import re

import pytest

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
MESSAGE = {
    "model": "tiny",
    "max_tokens": 1,
    "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "tool_use", "id": "1", "name": "now", "input": {"x": [1]}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "1",
                    "is_error": True,
                    "content": [{"type": "text", "text": "r"}],
                }
            ],
        },
    ],
    "tools": [
        {"type": "custom", "name": "now", "description": "d", "input_schema": SCHEMA},
        {"type": "web_search_20250305", "name": "web_search"},
    ],
    "tool_choice": {"type": "auto", "name": None, "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1, "display": "x"},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
    "output_format": {"type": "json_schema", "schema": SCHEMA},
    "stop_sequences": ["x"],
    "stream": False,
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 5,
    "metadata": {"user_id": "x"},
    "service_tier": "auto",
    "chat_template_kwargs": {"x": 1},
    "seed": 1,
}
OPTIONS = {
    "temperature": 0.5,
    "top_k": 3,
    "top_p": 0.5,
    "min_p": 0.1,
    "seed": 9,
    "num_predict": 1,
    "num_ctx": 5,
    "stop": ["x"],
    "presence_penalty": 1,
    "frequency_penalty": 0.5,
    "repeat_penalty": 1.5,
    "mirostat": 0,
}
COMMON = {
    "model": "tiny",
    "options": OPTIONS,
    "format": SCHEMA,
    "stream": False,
    "think": True,
    "keep_alive": "5m",
    "logprobs": True,
    "top_logprobs": 2,
}
FUNCTION = {"name": "now", "description": "d", "parameters": SCHEMA}
CHAT = COMMON | {
    "messages": [
        {"role": "user", "content": "a", "images": []},
        {
            "role": "assistant",
            "content": "b",
            "thinking": "t",
            "tool_calls": [{"id": "1", "function": {"name": "now", "arguments": {"x": 1}}}],
        },
        {"role": "tool", "content": "c", "tool_name": "now", "tool_call_id": "1"},
    ],
    "tools": [{"type": "function", "function": FUNCTION}],
}
GENERATE = COMMON | {
    "prompt": "a",
    "system": "s",
    "raw": False,
    "suffix": "",
    "template": "",
    "context": [],
    "images": [],
}
VALUES = (
    None,
    True,
    0,
    -1,
    1.5,
    1e308,
    2**70,
    "",
    "x",
    "\0",
    [],
    [None],
    [[]],
    {},
    {"x": 1},
    ["x"],
)


def places_in(value, place=()):
    if place:
        yield place
    steps = value.items() if isinstance(value, dict) else enumerate(value)
    for step, inner in steps:
        if isinstance(inner, dict | list):
            yield from places_in(inner, (*place, step))
        else:
            yield (*place, step)


def changed(body, place, value):
    body = json.loads(json.dumps(body))  # no part of it stands for two places
    inner = body
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    return body


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", MESSAGE),
        ("/v1/messages/count_tokens", MESSAGE),
        ("/api/chat", CHAT),
        ("/api/generate", GENERATE),
        ("/api/generate", GENERATE | {"raw": True, "system": None, "logprobs": None}),
        ("/api/show", {"model": "tiny", "name": "tiny"}),
    ],
)
async def test_value_of_a_wrong_type_is_never_a_server_error(http, path, body):
    answer = await http.post(path, json=body)
    assert answer.status_code == 200, answer.text  # otherwise the changes would show nothing
    for place in places_in(body):
        for value in VALUES:
            answer = await http.post(path, json=changed(body, place, value))
            case = (place, value, answer.status_code, answer.text)
            if answer.status_code == 404:
                assert place[0] in ("model", "name"), case
            elif answer.status_code != 200:
                assert answer.status_code == 400, case
                error = answer.json()["error"]
                message = error if path.startswith("/api/") else error["message"]
                assert isinstance(message, str), case
                # It names the field, one that it doesn't go together with, or the tool.
                known = ({step for step in place if isinstance(step, str)} - {"type"}) | body.keys()
                names = re.split(r"[\W]+", message)
                assert known & set(names) or "the tool 'now'" in message, case
