import asyncio
import os
from typing import Literal

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

set_tracing_disabled(True)
model = OpenAIChatCompletionsModel(os.environ["MODEL"], AsyncOpenAI(max_retries=0))
seed = {"extra_body": {"seed": 1}, "max_tokens": 300}
calls = []


@function_tool
def weather(city: Literal["Berlin", "Paris"]) -> str:
    """The weather in a city."""
    calls.append(city)
    return f"sunny in {city}"


class Person(BaseModel):
    name: str
    is_adult: bool


async def main():
    talker = Agent(name="talker", model=model, model_settings=ModelSettings(**seed))
    whole = await Runner.run(talker, "Say hello.")
    streamed = Runner.run_streamed(talker, "Say hello.")
    text = ""
    async for event in streamed.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            text += event.data.delta
    assert text == streamed.final_output == whole.final_output
    print("stream")
    caller = Agent(
        name="caller",
        model=model,
        tools=[weather],
        model_settings=ModelSettings(tool_choice="required", **seed),
    )
    await Runner.run(caller, "Weather in Paris?", max_turns=4)
    assert calls
    assert set(calls) <= {"Berlin", "Paris"}
    print("tools")
    writer = Agent(
        name="writer", model=model, output_type=Person, model_settings=ModelSettings(**seed)
    )
    assert isinstance((await Runner.run(writer, "Who?")).final_output, Person)
    print("structured")
    again = await Runner.run(talker, [*whole.to_input_list(), {"role": "user", "content": "More?"}])
    assert "<think>" not in again.final_output
    print("history")


asyncio.run(main())
