import os
from typing import Literal

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

model = OpenAILike(
    model=os.environ["MODEL"],
    api_base=os.environ["BASE_URL"],
    api_key="unused",
    is_chat_model=True,
    is_function_calling_model=True,
    should_use_structured_outputs=True,
    max_tokens=300,
    max_retries=0,
    additional_kwargs={"seed": 1},
)
messages = [ChatMessage(role="user", content="Weather in Paris?")]
whole = model.chat(messages)
parts = list(model.stream_chat(messages))
assert "".join(part.delta or "" for part in parts) == (whole.message.content or "")
print("stream")


def weather(city: Literal["Berlin", "Paris"]) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


tool = FunctionTool.from_defaults(fn=weather)
answer = model.chat_with_tools([tool], chat_history=messages, tool_required=True)
(call,) = model.get_tool_calls_from_response(answer)
assert call.tool_name == "weather"
result = ChatMessage(
    role="tool",
    content=weather(**call.tool_kwargs),
    additional_kwargs={"tool_call_id": call.tool_id},
)
after = model.chat([*messages, answer.message, result])
assert after.message.role == "assistant"
print("tools")


class Person(BaseModel):
    name: str
    is_adult: bool


assert isinstance(model.as_structured_llm(Person).chat(messages).raw, Person)
print("structured")
history = [*messages, whole.message, ChatMessage(role="user", content="And in Berlin?")]
assert "<think>" not in (model.chat(history).message.content or "")
print("history")
