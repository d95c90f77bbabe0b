import os
from typing import Literal

import instructor
from openai import OpenAI
from pydantic import BaseModel

MODEL = os.environ["MODEL"]


class Weather(BaseModel):
    city: Literal["Berlin", "Paris"]
    days: int


messages = [{"role": "user", "content": "Weather in Paris?"}]
schema = instructor.from_openai(OpenAI(max_retries=0), mode=instructor.Mode.JSON_SCHEMA)
tools = instructor.from_openai(OpenAI(max_retries=0), mode=instructor.Mode.TOOLS)
ask = {"model": MODEL, "max_retries": 0, "max_tokens": 300, "seed": 1}

parts = list(
    schema.chat.completions.create_partial(response_model=Weather, messages=messages, **ask)
)
whole = schema.chat.completions.create(response_model=Weather, messages=messages, **ask)
assert parts[-1].model_dump() == whole.model_dump()
print("stream")
called = tools.chat.completions.create(response_model=Weather, messages=messages, **ask)
assert isinstance(called, Weather)
print("tools")
assert isinstance(whole, Weather)
print("structured")
history = [
    *messages,
    {"role": "assistant", "content": "Sunny.", "reasoning_content": "It is summer."},
    {"role": "user", "content": "And in Berlin?"},
]
found, raw = schema.chat.completions.create_with_completion(
    response_model=Weather, messages=history, **ask
)
assert isinstance(found, Weather)
assert raw.usage.total_tokens == raw.usage.prompt_tokens + raw.usage.completion_tokens
print("history")
