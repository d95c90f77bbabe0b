import os
from typing import Literal

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

model = ChatOpenAI(model=os.environ["MODEL"], seed=1, max_tokens=300, max_retries=0)

short = model.bind(max_tokens=24)
whole = short.invoke("Say hello.")
chunks = list(short.stream("Say hello."))
assert "".join(chunk.content for chunk in chunks) == whole.content
usage = whole.usage_metadata
assert usage["input_tokens"] + usage["output_tokens"] == usage["total_tokens"]
print("stream")


@tool
def weather(city: Literal["Berlin", "Paris"]) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


question = HumanMessage("Weather in Paris?")
answer = model.bind_tools([weather], tool_choice="weather").invoke([question])
(call,) = answer.tool_calls
result = weather.invoke(call)
assert isinstance(result, ToolMessage)
after = model.bind_tools([weather], tool_choice="none").invoke([question, answer, result])
assert not after.tool_calls
print("tools")


class Person(BaseModel):
    name: str
    is_adult: bool


assert isinstance(model.with_structured_output(Person).invoke("Who?"), Person)
print("structured")
earlier = AIMessage("1", additional_kwargs={"reasoning_content": "The first number."})
answer = short.invoke([HumanMessage("One?"), earlier, HumanMessage("Two?")])
assert "<think>" not in answer.content
print("history")
