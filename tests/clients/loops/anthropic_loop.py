import json
import os
import typing

import anthropic
from anthropic.types import ContentBlockParam, Message, RawMessageStreamEvent, ToolUnionParam
from pydantic import TypeAdapter

client = anthropic.Anthropic(
    base_url=os.environ["BASE_URL"].removesuffix("/v1"), api_key="unused", max_retries=0
)
ask = {"model": os.environ["MODEL"], "extra_body": {"seed": 1}}
messages = [{"role": "user", "content": "What is the capital of France?"}]
thinking = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000}


def texts_of(message):
    return [(b.type, b.thinking if b.type == "thinking" else b.text) for b in message.content]


for options in ({"max_tokens": 40}, thinking):
    whole = client.messages.create(messages=messages, **options, **ask)
    with client.messages.stream(messages=messages, **options, **ask) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert texts_of(final) == texts_of(whole)
    assert text == "".join(block.text for block in whole.content if block.type == "text")
    assert final.stop_reason == whole.stop_reason
    assert whole.usage.output_tokens == final.usage.output_tokens
    num_input = whole.usage.input_tokens + whole.usage.cache_read_input_tokens
    counted = client.messages.count_tokens(
        messages=messages,
        model=ask["model"],
        **{name: value for name, value in options.items() if name == "thinking"},
    )
    assert counted.input_tokens == num_input
assert "Paris" in text

# Read strictly by the client's own types: nothing missing, nothing of a wrong type.
raw = client.messages.with_raw_response.create(messages=messages, **thinking, **ask)
assert texts_of(TypeAdapter(Message).validate_json(raw.text(), strict=True)) == texts_of(final)
with client.messages.with_streaming_response.create(
    messages=messages, stream=True, **thinking, **ask
) as response:
    data = [line[6:] for line in response.iter_lines() if line.startswith("data: ")]
read = TypeAdapter(RawMessageStreamEvent)
kinds = [read.validate_json(line, strict=True).type for line in data]
assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 2
print("stream")

schema = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Berlin", "Paris"]}},
    "required": ["city"],
}
tools = [{"name": "weather", "description": "of a city", "input_schema": schema}]
for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}):
    with client.messages.stream(
        messages=messages, tools=tools, tool_choice=choice, max_tokens=300, **ask
    ) as stream:
        answer = stream.get_final_message()
    assert answer.stop_reason == "tool_use"
    call = next(block for block in answer.content if block.type == "tool_use")
    assert call.input["city"] in ("Berlin", "Paris")
result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
history = [
    *messages,
    {"role": "assistant", "content": answer.content},
    {"role": "user", "content": [result]},
]
after = client.messages.create(messages=history, tools=tools, max_tokens=16, **ask)
assert after.content
num_tokens = client.messages.count_tokens(messages=history, model=ask["model"]).input_tokens
history[-1]["content"][0]["is_error"] = True
counted = client.messages.count_tokens(messages=history, model=ask["model"])
assert counted.input_tokens > num_tokens  # the model is told that the call failed


def types_in(union):
    """The `type` of each kind that the client's package knows; of an own tool it is optional."""
    for kind in typing.get_args(union):
        values = typing.get_args(typing.get_type_hints(kind)["type"])
        yield from (value for value in values[:1] if isinstance(value, str))


hosted = list(types_in(ToolUnionParam))
assert len(hosted) > 10
raw = client.messages.with_raw_response.create(
    messages=messages,
    tools=[*({"type": kind, "name": f"t{i}"} for i, kind in enumerate(hosted)), *tools],
    max_tokens=1,
    **ask,
)
assert raw.headers["x-skipped-tools"].split(", ") == list(dict.fromkeys(hosted))
print("tools")

person = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "is_adult": {"type": "boolean"}},
    "required": ["name", "is_adult"],
}
output = {"format": {"type": "json_schema", "schema": person}}
answer = client.messages.create(
    messages=messages,
    max_tokens=300,
    model=ask["model"],
    extra_body={"seed": 1, "output_config": output},
)
assert set(json.loads(answer.content[0].text)) == {"name", "is_adult"}
print("structured")

prefilled = client.messages.create(
    messages=[*messages, {"role": "assistant", "content": "The capital of"}], max_tokens=20, **ask
)
assert prefilled.content[0].text.strip().startswith("France")
history = [*messages, {"role": "assistant", "content": whole.content}, messages[0]]
again = client.messages.create(messages=history, max_tokens=40, system="Be brief.", **ask)
assert "<think>" not in again.content[0].text
try:
    client.messages.create(messages=messages, max_tokens=5, model="other")
except anthropic.NotFoundError as error:
    kind = error.body["error"]["type"]
assert kind == "not_found_error"
# Each kind of block that the package knows is read, left out or refused by its name.
read_or_left_out, refused = set(), set()
fields = {"text": "x", "thinking": "x", "signature": "", "data": "", "id": "1", "name": "weather"}
fields |= {"input": {}, "tool_use_id": "1", "content": "x", "source": {}, "title": "x"}
for kind in types_in(ContentBlockParam):
    turn = {"role": "assistant", "content": [{"type": kind, **fields}]}
    reason = ""
    try:
        client.messages.create(messages=[*messages, turn, *messages], max_tokens=1, **ask)
    except anthropic.BadRequestError as error:
        reason = error.body["error"]["message"]
    assert not reason or f'.content[0].type is "{kind}"' in reason
    (refused if reason else read_or_left_out).add(kind)
assert refused == {"image", "document", "search_result"}
assert {"text", "thinking", "redacted_thinking", "tool_use"} < read_or_left_out
same = client.beta.messages.create(messages=messages, max_tokens=40, **ask)
assert texts_of(same) == texts_of(client.messages.create(messages=messages, max_tokens=40, **ask))
print("history")
