"""Structured output and forced tool calls over HTTP, by the demo model and the official client."""

import asyncio
import json
from contextlib import aclosing
from typing import Literal

import httpx
import jsonschema
import openai
import pydantic
import pytest
import pytest_asyncio

from deployments.http.api import build_api
from deployments.ingress.service import ModelService
from qwen3_a8w8.checkpoint.resolve import resolve_model
from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.runner.model_runner import ModelRunner
from qwen3_a8w8.text.tokenizer import Tokenizer
from tests.support.fake_deployment import FakeEngine

pytestmark = pytest.mark.asyncio(loop_scope="module")

USER = [{"role": "user", "content": "Tell me something."}]
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"enum": [1, 3, 7]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "stop_all"}},
]


class Pet(pydantic.BaseModel):
    kind: Literal["cat", "dog"]
    age: int = pydantic.Field(ge=0, le=30)
    nicknames: list[Literal["Tiny", "Boss"]] = pydantic.Field(max_length=2)


class DemoEngine(FakeEngine):
    """A real runner in place of the fake one."""

    def __init__(self, runner: ModelRunner) -> None:
        super().__init__(runner.capabilities)
        self.runner = runner

    async def _open(self, request):
        if request.sampling.structured is not None:
            await asyncio.to_thread(self.runner.prepare_grammar, request.sampling.structured)
        async with aclosing(super()._open(request)) as events:
            async for event in events:
                yield event


@pytest.fixture(scope="module")
def runner():
    config = EngineConfig(num_kv_blocks=129, max_model_len=1024)
    runner = ModelRunner.load("demo", config)
    yield runner
    runner.close()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def http(runner):
    engine = DemoEngine(runner)
    service = ModelService("demo", resolve_model("demo"), engine, decode_batch_sizes=(1, 16))
    app = build_api(service, max_body_bytes=2**20)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client
    await engine.close()
    assert engine.core.stats().num_blocks_in_use == 0
    assert engine.core.num_active_sequences == 0


@pytest.fixture
def client(http):
    return openai.AsyncOpenAI(
        api_key="unused", base_url="http://test/v1", http_client=http, max_retries=0
    )


def arguments_of(call):
    arguments = json.loads(call.function.arguments)
    if call.function.name == "get_weather":
        jsonschema.validate(arguments, WEATHER)
    else:
        assert call.function.name == "stop_all"
        assert arguments == {}
    return arguments


@pytest.mark.parametrize("seed", range(4))
async def test_parse_helper_gives_the_pydantic_object(client, seed):
    answer = await client.chat.completions.parse(
        model="demo",
        messages=USER,
        response_format=Pet,
        seed=seed,
        temperature=1.5,
        extra_body=NO_THINKING,
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "stop"
    assert isinstance(choice.message.parsed, Pet)
    assert Pet.model_validate_json(choice.message.content) == choice.message.parsed


async def test_output_matches_the_grammar_after_the_think_block(client):
    answer = await client.chat.completions.create(
        model="demo",
        messages=USER,
        seed=1,
        temperature=0.6,
        response_format={"type": "json_schema", "json_schema": {"name": "w", "schema": WEATHER}},
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "stop"
    assert choice.message.reasoning_content, "the demo model thinks where it may"
    jsonschema.validate(json.loads(choice.message.content), WEATHER)


async def test_streamed_answer_is_the_whole_one(client):
    fields = {
        "model": "demo",
        "messages": USER,
        "seed": 3,
        "temperature": 1.2,
        "n": 3,
        "extra_body": {**NO_THINKING, "structured_outputs": {"regex": "([a-z]{1,9} ){2,5}end"}},
    }
    whole = await client.chat.completions.create(**fields)
    texts = ["", "", ""]
    async for chunk in await client.chat.completions.create(**fields, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices]
    assert all(text.endswith(" end") for text in texts)


@pytest.mark.parametrize(
    ("fields", "texts"),
    [
        ({"guided_choice": ["yes", "no"]}, {"yes", "no"}),
        ({"structured_outputs": {"grammar": 'root ::= "a" | "b"'}}, {"a", "b"}),
    ],
)
async def test_completions_take_the_same_fields(client, fields, texts):
    answer = await client.completions.create(
        model="demo", prompt=["One", "Two"], max_tokens=9, extra_body=fields
    )
    assert {choice.text for choice in answer.choices} <= texts
    assert {choice.finish_reason for choice in answer.choices} == {"stop"}


async def test_required_tool_choice_gives_valid_calls_behind_the_thoughts(client):
    answer = await client.chat.completions.create(
        model="demo",
        messages=USER,
        tools=TOOLS,
        tool_choice="required",
        n=4,
        seed=0,
        temperature=1.2,
        max_tokens=900,
    )
    # One may think, or call, for as long as it may.
    ended = [choice for choice in answer.choices if choice.finish_reason != "length"]
    assert len(ended) >= 2
    for choice in ended:
        assert choice.finish_reason == "tool_calls"
        assert choice.message.reasoning_content
        assert not choice.message.content
        assert choice.message.tool_calls
        for call in choice.message.tool_calls:
            arguments_of(call)


async def test_required_without_parallel_calls_gives_one_call(client):
    answer = await client.chat.completions.create(
        model="demo",
        messages=USER,
        tools=TOOLS,
        tool_choice="required",
        parallel_tool_calls=False,
        n=4,
        temperature=1.5,
        extra_body=NO_THINKING,
    )
    for choice in answer.choices:
        assert choice.finish_reason == "tool_calls"
        (call,) = choice.message.tool_calls
        arguments_of(call)


@pytest.mark.parametrize("name", ["get_weather", "stop_all"])
async def test_named_tool_is_called_once_and_ends_with_stop(client, name):
    fields = {
        "model": "demo",
        "messages": USER,
        "tools": TOOLS,
        "tool_choice": {"type": "function", "function": {"name": name}},
        "seed": 2,
        "temperature": 1.0,
        "extra_body": NO_THINKING,
    }
    answer = await client.chat.completions.create(**fields)
    (choice,) = answer.choices
    assert choice.finish_reason == "stop"
    (call,) = choice.message.tool_calls
    assert call.function.name == name
    arguments = arguments_of(call)
    streamed = [
        piece
        async for chunk in await client.chat.completions.create(**fields, stream=True)
        for piece in chunk.choices[0].delta.tool_calls or ()
    ]
    assert {piece.function.name for piece in streamed if piece.function.name} == {name}
    assert json.loads("".join(p.function.arguments or "" for p in streamed)) == arguments


@pytest.mark.parametrize(("bias", "kind"), [(100.0, "tool_calls"), (-100.0, "stop")])
async def test_tools_with_json_answer_give_one_or_the_other(client, bias, kind):
    tag = Tokenizer.from_directory(resolve_model("demo")).token_id("<tool_call>")
    answer = await client.chat.completions.create(
        model="demo",
        messages=USER,
        tools=TOOLS,
        response_format={"type": "json_schema", "json_schema": {"name": "w", "schema": WEATHER}},
        logit_bias={str(tag): bias},
        n=4,
        seed=1,
        temperature=1.5,
        extra_body=NO_THINKING,
    )
    for choice in answer.choices:
        assert choice.finish_reason == kind
        if kind == "stop":
            jsonschema.validate(json.loads(choice.message.content), WEATHER)
        for call in choice.message.tool_calls or ():
            arguments_of(call)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"type": "strin"}},
                }
            },
            "response_format",
        ),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs"),
        ({"guided_grammar": "start: foo"}, "guided_grammar"),
        ({"guided_regex": "a" * 300_000}, "guided_regex"),
        (
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "f", "parameters": {"properties": 5}},
                    }
                ],
                "tool_choice": "required",
            },
            "tools",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_form_that_can_not_be_used_is_a_400_that_names_its_field(http, fields, param, stream):
    body = {"messages": USER, "stream": stream, **fields}
    response = await http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param


async def test_grammar_that_becomes_too_complex_ends_with_an_error(http):
    body = {
        "messages": USER,
        "guided_regex": "[ab]{200}(a?){400}a{400}",
        "stream": True,
        **NO_THINKING,
    }
    response = await http.post("/v1/chat/completions", json=body)
    frames = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    assert frames[-1] == "[DONE]"
    error = json.loads(frames[-2])["error"]
    assert error["param"] == "guided_regex"
    assert "too many expressions" in error["message"]


async def test_responses_parse_gives_the_callers_own_type(client):
    response = await client.responses.parse(
        model="demo",
        input="Tell me of a pet.",
        text_format=Pet,
        temperature=1.0,
        extra_body={"seed": 5, **NO_THINKING},
    )
    assert response.status == "completed"
    assert isinstance(response.output_parsed, Pet)


async def test_responses_have_the_calls_that_are_required(client):
    tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
    response = await client.responses.create(
        model="demo",
        input="How is the weather?",
        tools=tools,
        tool_choice="required",
        extra_body={"seed": 5, **NO_THINKING},
    )
    calls = [item for item in response.output if item.type == "function_call"]
    assert calls
    for call in calls:
        assert call.name in ("get_weather", "stop_all")
        json.loads(call.arguments)


STRICT = {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}}
STRICT["function"]["strict"] = True


@pytest.mark.parametrize("max_tokens", [2, 5, 9])
async def test_enforced_call_that_is_cut_leaks_no_markup(http, max_tokens):
    body = {"messages": USER, "tools": TOOLS[:1], "tool_choice": "required", **NO_THINKING}
    answer = await http.post("/v1/chat/completions", json=body | {"max_tokens": max_tokens})
    (choice,) = answer.json()["choices"]
    assert choice["finish_reason"] == "length"
    assert not choice["message"]["content"]
    flat = [{"type": "function", "name": "get_weather", "parameters": WEATHER}]
    body = {"input": "hi", "tools": flat, "tool_choice": "required", **NO_THINKING}
    answer = await http.post("/v1/responses", json=body | {"max_output_tokens": max_tokens})
    assert answer.json()["status"] == "incomplete"
    assert answer.json()["output"] == []


@pytest.mark.parametrize("seed", range(3))
async def test_strict_tool_keeps_its_schema_under_auto(http, seed):
    body = {"messages": USER, "tools": [STRICT], "seed": seed, "max_tokens": 200, **NO_THINKING}
    # The bias makes the model open a call at once; its arguments are then the grammar's.
    (call_open,) = Tokenizer.from_directory(resolve_model("demo")).encode("<tool_call>")
    body |= {"logit_bias": {str(call_open): 100}, "parallel_tool_calls": False}
    answer = await http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    (call,) = choice["message"]["tool_calls"]
    jsonschema.validate(json.loads(call["function"]["arguments"]), WEATHER)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": r"^(?!a)\w+$"},
        {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
        {"$ref": "https://example.com/schema.json"},
    ],
)
async def test_tool_schema_that_can_not_be_compiled_does_not_sink_the_request(http, schema):
    parameters = {"type": "object", "properties": {"x": schema}, "required": ["x"]}
    function = {"name": "f", "parameters": parameters}
    tools = [{"type": "function", "function": function}]
    body = {"messages": USER, "tools": tools, "tool_choice": "required", "max_tokens": 60}
    answer = await http.post("/v1/chat/completions", json=body | NO_THINKING)
    assert answer.status_code == 200, answer.text
    function["strict"] = True
    answer = await http.post("/v1/chat/completions", json=body | NO_THINKING)
    assert answer.status_code == 400
    assert "the tool 'f', properties.x." in answer.json()["error"]["message"]
