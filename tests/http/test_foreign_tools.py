"""Tools that this server doesn't run, and custom tools, in the Responses API and in chat."""

import json

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.support.fake_deployment import FakeEngine, text_capabilities

FUNCTION = {"type": "function", "name": "shell", "parameters": {"type": "object"}}
FOREIGN = [
    {"type": "web_search", "external_web_access": True},
    {"type": "namespace", "name": "n", "description": "many", "tools": [FUNCTION]},
    {"type": "file_search", "vector_store_ids": ["v"]},
    {"type": "code_interpreter", "container": {"type": "auto"}},
    {"type": "mcp", "server_label": "m", "server_url": "https://example.com"},
    {"type": "local_shell"},
]
TYPES = "web_search, namespace, file_search, code_interpreter, mcp, local_shell"
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "edits files",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: LINE+"},
}
TEXT = '*** Begin Patch\n+a "b" \\ é 🙂\n*** End Patch\n'
CALL = (
    '<tool_call>\n{"name": "apply_patch", "arguments": {"input": '
    + json.dumps(TEXT).replace("é", "\\u00e9")
    + "}}\n</tool_call>"
)


@pytest.fixture
async def engine(model_directory):
    # Descriptions of tools are long for the usual fake model.
    sizes = {"max_model_len": 1024, "num_kv_blocks": 513}
    engine = FakeEngine(text_capabilities(model_directory, **sizes))
    yield engine
    await engine.close()


def prompt_of(engine, tokenizer):
    *_, start = (start for plan in engine.runner.plans for start in plan.start)
    return tokenizer.decode(start.prompt_token_ids, skip_special_tokens=False)


async def test_foreign_tools_are_left_out_and_named(http, say, engine, tokenizer):
    say("Paris.")
    body = {"input": "capital?", "tools": [*FOREIGN, FUNCTION], "metadata": {"a": "b"}}
    answer = await http.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-skipped-tools"] == TYPES
    response = answer.json()
    TypeAdapter(Response).validate_json(answer.text, strict=True)
    assert response["tools"][0] == FOREIGN[0]
    assert response["metadata"]["a"] == "b"
    assert response["metadata"]["warnings"].endswith(f"left out: {TYPES}")
    prompt = prompt_of(engine, tokenizer)
    assert '"name": "shell"' in prompt
    assert "web_search" not in prompt


async def test_foreign_tools_of_a_chat_are_left_out(http, say, engine, tokenizer, caplog):
    say("Paris.")
    chat = {"type": "function", "function": {"name": "shell"}}
    custom = {"type": "custom", "custom": {"name": "free"}}
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": [FOREIGN[0], custom, chat]}
    answer = await http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-skipped-tools"] == "web_search, custom"
    assert "web_search, custom" in caplog.text
    assert "web_search" not in prompt_of(engine, tokenizer)
    answer = await http.post("/v1/chat/completions", json=body | {"tools": FOREIGN[:1]})
    assert "<tools>" not in prompt_of(engine, tokenizer)


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
async def test_choice_that_demands_a_foreign_tool_is_refused(http, path):
    body = (
        {"input": "x"} if "responses" in path else {"messages": [{"role": "user", "content": ""}]}
    )
    for choice in ("required", {"type": "web_search"}):
        fields = body | {"tools": FOREIGN[:1], "tool_choice": choice}
        answer = await http.post(path, json=fields)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"].startswith("tool_choice")
        assert "web_search" in answer.json()["error"]["message"]


REQUEST = {"model": "tiny", "input": "edit", "tools": [PATCH], "max_output_tokens": 200}


async def test_custom_tool_is_called_with_free_text(client, say):
    say(CALL)
    whole = await client.responses.create(**REQUEST)
    (item,) = whole.output
    assert (item.type, item.name, item.input) == ("custom_tool_call", "apply_patch", TEXT)
    events = [event async for event in await client.responses.create(**REQUEST, stream=True)]
    adapter = TypeAdapter(ResponseStreamEvent)
    for event in events:
        adapter.validate_python(event.model_dump(exclude_unset=True))
    kind = "response.custom_tool_call_input"
    deltas = [event.delta for event in events if event.type == f"{kind}.delta"]
    assert "".join(deltas) == TEXT
    assert len(deltas) > 5
    assert [event.input for event in events if event.type == f"{kind}.done"] == [TEXT]
    (final,) = events[-1].response.output
    assert (final.type, final.input) == ("custom_tool_call", TEXT)


async def test_custom_tool_called_with_other_arguments_gets_them_as_they_are(client, say):
    say(CALL.replace('"input"', '"patch"'))
    (item,) = (await client.responses.create(**REQUEST)).output
    assert item.type == "custom_tool_call"
    assert json.loads(item.input) == {"patch": TEXT}


async def test_custom_call_and_its_output_go_back_to_the_model(client, say, engine, tokenizer):
    say(CALL)
    (call,) = (await client.responses.create(**REQUEST, store=False)).output
    say("Done.")
    history = [
        {"role": "user", "content": "edit"},
        {"type": "web_search_call", "id": "ws", "status": "completed"},
        call.model_dump(exclude_none=True),
        {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "patched"},
    ]
    answer = await client.responses.create(**REQUEST | {"input": history})
    assert answer.output_text == "Done."
    prompt = prompt_of(engine, tokenizer)
    assert json.dumps({"input": TEXT}, ensure_ascii=False) in prompt
    assert "<tool_response>\npatched\n</tool_response>" in prompt
