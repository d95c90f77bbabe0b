"""The Responses API over a fake engine, as the official client sees it."""

import asyncio
import json

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from qwen3_a8w8.openai.responses.items import messages_of

SEED = 7
FREE = {"seed": SEED, "ignore_eos": True, "chat_template_kwargs": {"enable_thinking": False}}
TOOL = {"type": "function", "name": "now", "description": "time", "parameters": {"type": "object"}}


async def create(client, **fields):
    body = {"model": "tiny", "input": "hi", "max_output_tokens": 8, "extra_body": FREE} | fields
    return await client.responses.create(**body)


async def test_response_is_a_completed_or_incomplete_official_object(client):
    response = await create(client, instructions="be brief", metadata={"a": "b"})
    TypeAdapter(Response).validate_python(response.model_dump(), strict=True)
    assert response.id.startswith("resp_")
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output_text
    assert response.output[-1].type == "message"
    assert response.usage.output_tokens == 8
    assert response.metadata == {"a": "b"}


async def test_response_equals_the_chat_completion_of_the_same_messages(client):
    response = await create(client, instructions="be brief")
    chat = await client.chat.completions.create(
        model="tiny",
        messages=[{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
        max_tokens=8,
        extra_body=FREE,
    )
    assert response.output_text.strip() == chat.choices[0].message.content.strip()
    assert response.usage.input_tokens == chat.usage.prompt_tokens


async def test_streamed_events_are_official_numbered_and_end_in_the_whole_response(client):
    events = [event async for event in await create(client, stream=True)]
    adapter = TypeAdapter(ResponseStreamEvent)
    for event in events:
        adapter.validate_python(event.model_dump(exclude_unset=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:4]] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert [event.type for event in events[-4:]] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert text == events[-1].response.output_text == (await create(client)).output_text


async def test_stream_helper_of_the_client_follows(client):
    async with client.responses.stream(
        model="tiny", input="hi", max_output_tokens=400, extra_body={"seed": SEED}
    ) as stream:
        kinds = [event.type async for event in stream]
    assert kinds[0] == "response.created"
    assert kinds[-1] in ("response.completed", "response.incomplete")


ANSWER = "<think>\nlook\n</think>\n\nI look."
CALL = '\n<tool_call>\n{"name": "now", "arguments": {"tz": "UTC"}}\n</tool_call>'


async def test_reasoning_text_and_call_are_items_of_their_own(client, say):
    say(ANSWER + CALL)
    request = {"input": "time?", "max_output_tokens": 100, "tools": [TOOL], "extra_body": {}}
    response = await create(client, **request)
    TypeAdapter(Response).validate_python(response.model_dump(), strict=True)
    reasoning, message, call = response.output
    assert response.status == "completed"
    assert reasoning.content[0].text == "look"
    assert message.content[0].text == "I look."
    assert (call.type, call.name, call.arguments) == ("function_call", "now", '{"tz": "UTC"}')
    assert 0 < response.usage.output_tokens_details.reasoning_tokens < response.usage.output_tokens
    async with client.responses.stream(model="tiny", **request) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert kinds.count("response.output_item.done") == 3
    assert kinds.index("response.reasoning_text.done") < kinds.index("response.output_text.delta")
    assert "response.function_call_arguments.done" in kinds
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]


async def test_output_of_a_call_goes_back_with_the_previous_response(
    client, say, engine, tokenizer
):
    say(ANSWER + CALL)
    request = {"max_output_tokens": 100, "tools": [TOOL], "extra_body": {}}
    first = await create(client, input="time?", **request)
    say("It is noon.")
    output = {
        "type": "function_call_output",
        "call_id": first.output[-1].call_id,
        "output": "12:00",
    }
    second = await create(client, input=[output], previous_response_id=first.id, **request)
    assert second.output_text == "It is noon."
    *_, start = (start for plan in engine.runner.plans for start in plan.start)
    prompt = tokenizer.decode(start.prompt_token_ids, skip_special_tokens=False)
    assert '"arguments": {"tz": "UTC"}' in prompt
    assert "<tool_response>\n12:00\n</tool_response>" in prompt


async def test_raw_frames_name_their_events(http):
    body = {"input": "hi", "max_output_tokens": 3, "stream": True}
    answer = await http.post("/v1/responses", json=body)
    frames = answer.text.strip().split("\n\n")
    assert frames[-1] == "data: [DONE]"
    for frame in frames[:-1]:
        name, data = frame.split("\n")
        assert json.loads(data.removeprefix("data: "))["type"] == name.removeprefix("event: ")


async def test_engine_that_crashes_gives_a_failed_event(http, engine):
    engine.runner.fail_at_step = 4
    body = {"input": "hi", "max_output_tokens": 50, "stream": True, "ignore_eos": True}
    frames = (await http.post("/v1/responses", json=body)).text.strip().split("\n\n")
    name, data = frames[-2].split("\n")
    assert name == "event: response.failed"
    response = json.loads(data.removeprefix("data: "))["response"]
    assert response["status"] == "failed"
    assert response["error"]["code"] == "server_error"
    assert frames[-1] == "data: [DONE]"


async def test_previous_response_continues_the_conversation(client):
    first = await create(client, instructions="be brief")
    second = await create(client, input="go on", previous_response_id=first.id)
    chat = await client.chat.completions.create(
        model="tiny",
        messages=[
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": first.output_text},
            {"role": "user", "content": "go on"},
        ],
        max_tokens=8,
        extra_body=FREE,
    )
    assert second.usage.input_tokens == chat.usage.prompt_tokens
    assert second.previous_response_id == first.id


async def test_stored_response_can_be_had_and_deleted(client):
    response = await create(client)
    assert (await client.responses.retrieve(response.id)).output_text == response.output_text
    await client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(response.id)


async def test_response_has_every_field_with_its_effective_value(http):
    answer = await http.post("/v1/responses", json={"input": "hi", "max_output_tokens": 2})
    response = answer.json()
    # The checkpoint's generation_config.json; and what the server does where it says nothing.
    assert (response["temperature"], response["top_p"]) == (0.6, 0.95)
    assert (response["presence_penalty"], response["frequency_penalty"]) == (0, 0)
    assert (response["top_logprobs"], response["service_tier"]) == (0, "default")
    for name in ("max_tool_calls", "safety_identifier", "prompt_cache_key"):
        assert response[name] is None
    fields = {"temperature": 0.5, "top_p": 0.75, "prompt_cache_key": "k", "max_tool_calls": 3}
    answer = await http.post("/v1/responses", json={"input": "hi", "max_output_tokens": 2} | fields)
    assert fields.items() <= answer.json().items()


async def test_input_items_of_a_stored_response_come_in_pages(client, http):
    first = await create(client)
    second = await create(client, input="go on", previous_response_id=first.id)
    listed = [item async for item in client.responses.input_items.list(second.id, order="asc")]
    assert [item.role for item in listed] == ["user", "assistant", "user"]
    assert listed[0].content[0].model_dump(exclude_unset=True) == {
        "type": "input_text",
        "text": "hi",
    }
    assert listed[1].id == first.output[-1].id
    paged = [item async for item in client.responses.input_items.list(second.id, limit=1)]
    assert [item.id for item in paged] == [item.id for item in reversed(listed)]
    page = (await http.get(f"/v1/responses/{second.id}/input_items?limit=2")).json()
    assert (page["object"], page["has_more"], len(page["data"])) == ("list", True, 2)
    for query in ("limit=0", "limit=x", "order=up", "after=nothing"):
        answer = await http.get(f"/v1/responses/{second.id}/input_items?{query}")
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == query.partition("=")[0]
    assert (await http.get("/v1/responses/none/input_items")).status_code == 404


async def polled(client, response_id):
    """The response once it has ended."""
    for _ in range(10_000):
        response = await client.responses.retrieve(response_id)
        if response.status not in ("queued", "in_progress"):
            return response
        # Client and server share this loop, and nothing above waits: the generation has to run.
        await asyncio.sleep(0)
    raise AssertionError("the response doesn't end")


async def test_background_response_is_polled_and_is_the_usual_one(client):
    started = await create(client, background=True)
    assert (started.status, started.background, started.output) == ("in_progress", True, [])
    done = await polled(client, started.id)
    assert done.status == "incomplete"
    assert done.output_text == (await create(client)).output_text
    follow_up = await create(client, input="go on", previous_response_id=done.id)
    assert follow_up.usage.input_tokens > done.usage.input_tokens
    again = await client.responses.cancel(done.id)
    assert again.status == "incomplete", "what has ended stays as it is"
    with pytest.raises(openai.BadRequestError, match="isn't a background response"):
        await client.responses.cancel(follow_up.id)


async def test_background_response_that_is_cancelled_ends_and_frees_its_blocks(client, engine):
    started = await create(client, background=True, max_output_tokens=200)
    cancelled = await client.responses.cancel(started.id)
    assert cancelled.status == "cancelled"
    assert (await client.responses.retrieve(started.id)).status == "cancelled"
    TypeAdapter(Response).validate_python(cancelled.model_dump(), strict=True)
    deleted = await create(client, background=True, max_output_tokens=200)
    await client.responses.delete(deleted.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(deleted.id)


async def test_background_response_whose_engine_crashes_is_failed(client, engine):
    engine.runner.fail_at_step = 4
    started = await create(client, background=True, max_output_tokens=50)
    failed = await polled(client, started.id)
    assert failed.status == "failed"
    assert failed.error.code == "server_error"


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_logprobs_are_those_of_the_text_without_its_reasoning(client, say, is_streamed):
    say("<think>\nfox\n</think>\n\nthe dog")
    chat = await client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "hi"}],
        max_tokens=60,
        logprobs=True,
        top_logprobs=2,
        seed=SEED,
    )
    result = await create(
        client,
        max_output_tokens=60,
        include=["message.output_text.logprobs"],
        top_logprobs=2,
        stream=is_streamed,
        extra_body={"seed": SEED},
    )
    deltas = []
    if is_streamed:
        events = [event async for event in result]
        deltas = [e for e in events if e.type == "response.output_text.delta"]
        result = events[-1].response
    logprobs = result.output[-1].content[0].logprobs
    text = "".join(bytes(entry.bytes).decode() for entry in logprobs)
    assert text.lstrip("\n") == result.output_text == "the dog"
    of_chat = chat.choices[0].logprobs.content[:-1]  # without the end-of-sequence token
    expected = [entry.model_dump() for entry in of_chat[-len(logprobs) :]]
    assert [entry.model_dump() for entry in logprobs] == expected
    if is_streamed:
        assert [e.token for delta in deltas for e in delta.logprobs] == [e.token for e in logprobs]


async def test_input_tokens_are_those_of_the_response(client):
    first = await create(client, instructions="be brief", tools=[TOOL])
    extra_body = {"chat_template_kwargs": {"enable_thinking": False}}
    counted = await client.responses.input_tokens.count(
        model="tiny", input="hi", instructions="be brief", tools=[TOOL], extra_body=extra_body
    )
    assert counted.object == "response.input_tokens"
    assert counted.input_tokens == first.usage.input_tokens


async def test_store_keeps_the_latest_responses_and_none_with_store_false(client):
    first, private = await create(client), await create(client, store=False)
    assert not private.store
    for _ in range(4):
        await create(client)
    for unknown in (first, private):
        with pytest.raises(openai.BadRequestError) as caught:
            await create(client, previous_response_id=unknown.id)
        assert caught.value.code == "previous_response_not_found"
        assert caught.value.param == "previous_response_id"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": 5}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "input_image"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "x"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"background": True, "stream": True}, "stream"),
        ({"background": True, "store": False}, "store"),
        ({"n": 2}, "n"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"truncation": "auto"}, "truncation"),
        ({"tools": [{"type": 5}]}, "tools[0].type"),
        ({"tools": [{"type": "custom"}]}, "tools[0].name"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        (
            {"tools": [{"type": "web_search"}, TOOL], "tool_choice": {"type": "web_search"}},
            "tool_choice.type",
        ),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"tools": [{"type": "function", "name": ""}]}, "tools[0].name"),
        ({"tool_choice": {"type": "function", "name": 5}}, "tool_choice.name"),
        ({"text": {"format": {"type": "json_schema", "schema": 5}}}, "text.format.schema"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"temperature": "hot"}, "temperature"),
    ],
)
async def test_what_is_not_supported_gives_400_with_its_field(http, fields, param):
    answer = await http.post("/v1/responses", json={"input": "hi"} | fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


async def test_unknown_fields_are_named_in_a_header(http):
    body = {"input": "hi", "max_output_tokens": 1, "top_k": 3, "no_such": 1, "other": 2}
    answer = await http.post("/v1/responses", json=body)
    assert answer.headers["x-unknown-fields"] == "no_such, other"


def test_items_of_one_turn_become_one_message():
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "what time?"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I look."}],
        },
        {"type": "function_call", "call_id": "c1", "name": "now", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "now", "arguments": '{"tz": "UTC"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "12:00"},
        {
            "type": "function_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "11:00"}],
        },
        {"type": "message", "role": "assistant", "content": "Noon."},
    ]
    assert messages_of(items, "be brief") == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "what time?"},
        {
            "role": "assistant",
            "reasoning_content": "hm",
            "content": "I look.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "now", "arguments": "{}"}},
                {
                    "id": "c2",
                    "type": "function",
                    "function": {"name": "now", "arguments": '{"tz": "UTC"}'},
                },
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "12:00"},
        {"role": "tool", "tool_call_id": "c2", "content": "11:00"},
        {"role": "assistant", "content": "Noon."},
    ]
