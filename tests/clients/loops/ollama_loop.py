import json
import os

import ollama

client = ollama.Client(host=os.environ["BASE_URL"].removesuffix("/v1"))
model = os.environ["MODEL"]
messages = [{"role": "user", "content": "What is the capital of France?"}]
short = {"options": {"seed": 1, "num_predict": 1}}
ask = {"model": model, "options": {"seed": 1, "num_predict": 2000}}

for think in (True, False):
    whole = client.chat(messages=messages, think=think, **ask)
    chunks = list(client.chat(messages=messages, think=think, stream=True, **ask))
    assert "".join(chunk.message.content or "" for chunk in chunks) == whole.message.content
    thinking = "".join(chunk.message.thinking or "" for chunk in chunks)
    assert thinking == (whole.message.thinking or "")
    assert chunks[-1].done
    assert chunks[-1].eval_count == whole.eval_count
assert "Paris" in whole.message.content
whole = client.generate(prompt=messages[0]["content"], think=False, **ask)
chunks = list(client.generate(prompt=messages[0]["content"], think=False, stream=True, **ask))
assert "".join(chunk.response for chunk in chunks) == whole.response
raw = client.generate(model=model, prompt="The capital of", raw=True, options={"num_predict": 3})
assert raw.eval_count == 3
logged = {**ask, "messages": messages, "logprobs": True}
whole = client.chat(**logged)
chunks = list(client.chat(stream=True, **logged))
assert [one for chunk in chunks for one in chunk.logprobs or ()] == list(whole.logprobs)
assert len(whole.logprobs) == whole.eval_count
assert [entry.model for entry in client.list().models] == [model]
assert client.show(model).modelinfo["general.architecture"] == "qwen3"
assert [entry.model for entry in client.ps().models] == [model]
print("stream")


def weather(city: str) -> str:
    """The weather in a city.

    Args:
        city: its name

    Returns:
        str: the weather
    """
    return f"sunny in {city}"


call = {"function": {"name": "weather", "arguments": {"city": "Paris"}}}
history = [
    *messages,
    {"role": "assistant", "content": "", "tool_calls": [call]},
    {"role": "tool", "tool_name": "weather", "content": weather("Paris")},
]
answer = client.chat(messages=history, tools=[weather], think=False, **ask)
assert answer.message.content or answer.message.tool_calls
print("tools")

schema = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "is_adult": {"type": "boolean"}},
    "required": ["name", "is_adult"],
}
answer = client.chat(messages=messages, format=schema, think=False, **ask)
assert set(json.loads(answer.message.content)) == {"name", "is_adult"}
print("structured")

history = [*messages, {"role": "assistant", "content": "Paris.", "thinking": "Easy."}, messages[0]]
assert "<think>" not in client.chat(messages=history, think=False, **ask).message.content
begun = [*messages, {"role": "assistant", "content": "The capital of"}]
assert client.chat(messages=begun, **ask).message.content.strip().startswith("France")


def status_of(call, **fields):
    try:
        call(**fields)
    except ollama.ResponseError as error:
        return error.status_code
    return 200


assert status_of(client.chat, model="other", messages=messages) == 404
assert status_of(client.chat, model=f"{model}:latest", messages=messages, **short) == 200
pictured = [{**messages[0], "images": [b"x"]}]
assert status_of(client.chat, model=model, messages=pictured) == 400
assert status_of(client.generate, model=model, prompt="x", suffix="y") == 400
assert status_of(client.generate, model=model, prompt="x", raw=True, system="y") == 400
assert status_of(client.embed, model=model, input="x") == 404
print("history")
