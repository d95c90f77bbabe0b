import json
import os

import litellm
from pydantic import BaseModel

ask = {
    "model": f"hosted_vllm/{os.environ['MODEL']}",
    "api_base": os.environ["BASE_URL"],
    "api_key": "unused",
    "num_retries": 0,
    "seed": 1,
}
messages = [{"role": "user", "content": "Weather in Paris?"}]
whole = litellm.completion(messages=messages, max_tokens=24, **ask)
chunks = list(litellm.completion(messages=messages, max_tokens=24, stream=True, **ask))
text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
assert text == (whole.choices[0].message.content or "")
reasoning = "".join(
    getattr(chunk.choices[0].delta, "reasoning_content", None) or "" for chunk in chunks
)
assert reasoning == (getattr(whole.choices[0].message, "reasoning_content", None) or "")
assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
print("stream")

parameters = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Berlin", "Paris"]}},
    "required": ["city"],
}
tools = [{"type": "function", "function": {"name": "weather", "parameters": parameters}}]
answer = litellm.completion(
    messages=messages, tools=tools, tool_choice="required", max_tokens=300, **ask
)
(call,) = answer.choices[0].message.tool_calls
assert json.loads(call.function.arguments)["city"] in ("Berlin", "Paris")
history = [*messages, answer.choices[0].message.model_dump()]
history.append({"role": "tool", "tool_call_id": call.id, "content": "sunny"})
after = litellm.completion(messages=history, tools=tools, tool_choice="none", max_tokens=16, **ask)
assert after.choices[0].finish_reason in ("stop", "length")
print("tools")


class Person(BaseModel):
    name: str
    is_adult: bool


answer = litellm.completion(messages=messages, response_format=Person, max_tokens=300, **ask)
Person.model_validate_json(answer.choices[0].message.content)
print("structured")
earlier = {"role": "assistant", "content": "1", "reasoning_content": "The first number."}
history = [{"role": "user", "content": "One?"}, earlier, {"role": "user", "content": "Two?"}]
answer = litellm.completion(messages=history, max_tokens=16, **ask)
assert "<think>" not in (answer.choices[0].message.content or "")
print("history")
