import json
import os

import anthropic

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
print("history")
