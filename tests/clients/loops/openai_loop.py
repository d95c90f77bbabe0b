import json
import os

from openai import OpenAI
from pydantic import BaseModel

MODEL = os.environ["MODEL"]
client = OpenAI(max_retries=0)
ask = {"model": MODEL, "messages": [{"role": "user", "content": "Say hello."}], "seed": 1}
ask |= {"max_tokens": 24, "temperature": 0.7}

whole = client.chat.completions.create(**ask)
chunks = list(
    client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True})
)
deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
message = whole.choices[0].message
assert "".join(d.content or "" for d in deltas) == (message.content or "")
reasoning = "".join(getattr(d, "reasoning_content", None) or "" for d in deltas)
assert reasoning == (getattr(message, "reasoning_content", None) or "")
assert chunks[-1].usage == whole.usage
usage = whole.usage
assert usage.prompt_tokens + usage.completion_tokens == usage.total_tokens
print("stream")

parameters = {
    "type": "object",
    "properties": {"city": {"enum": ["Berlin", "Paris"]}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
tool = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
messages = [{"role": "user", "content": "Weather in Paris?"}]
choice = {"type": "function", "function": {"name": "weather"}}
answer = client.chat.completions.create(
    model=MODEL, messages=messages, tools=[tool], tool_choice=choice, seed=1, max_tokens=200
)
(call,) = answer.choices[0].message.tool_calls
arguments = json.loads(call.function.arguments)
assert call.function.name == "weather"
assert arguments["city"] in ("Berlin", "Paris")
assert isinstance(arguments["days"], int)
messages.append(answer.choices[0].message.model_dump(exclude_none=True))
messages.append({"role": "tool", "tool_call_id": call.id, "content": "sunny"})
after = client.chat.completions.create(
    model=MODEL, messages=messages, tools=[tool], tool_choice="none", max_tokens=16
)
assert after.choices[0].finish_reason in ("stop", "length")
assert not after.choices[0].message.tool_calls
print("tools")


class Person(BaseModel):
    name: str
    is_adult: bool


parsed = client.chat.completions.parse(
    model=MODEL, messages=ask["messages"], response_format=Person, seed=1, max_tokens=300
)
assert isinstance(parsed.choices[0].message.parsed, Person)
print("structured")

history = [
    {"role": "user", "content": "One?"},
    {"role": "assistant", "content": "1", "reasoning_content": "The first number."},
    {"role": "user", "content": "Two?"},
]
answer = client.chat.completions.create(model=MODEL, messages=history, max_tokens=16)
assert answer.usage.prompt_tokens > 0
assert "<think>" not in (answer.choices[0].message.content or "")
print("history")
