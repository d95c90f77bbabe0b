import asyncio
import os
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(base_url=os.environ["BASE_URL"], api_key="unused")
model = OpenAIChatModel(os.environ["MODEL"], provider=provider)
settings = {"max_tokens": 300, "seed": 1, "temperature": 0.7}


class Weather(BaseModel):
    city: Literal["Berlin", "Paris"]
    is_sunny: bool


async def main():
    talker = Agent(model, model_settings=settings, retries=0)
    whole = await talker.run("Say hello.")
    async with talker.run_stream("Say hello.") as stream:
        parts = [part async for part in stream.stream_text(delta=True)]
    assert "".join(parts) == whole.output
    print("stream")
    caller = Agent(model, output_type=ToolOutput(Weather), model_settings=settings)
    assert isinstance((await caller.run("Weather in Paris?")).output, Weather)
    print("tools")
    writer = Agent(model, output_type=NativeOutput(Weather), model_settings=settings)
    assert isinstance((await writer.run("Weather in Paris?")).output, Weather)
    print("structured")
    again = await talker.run("And again?", message_history=whole.all_messages())
    assert "<think>" not in again.output
    print("history")


asyncio.run(main())
