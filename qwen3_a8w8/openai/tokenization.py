"""Bodies of `POST /tokenize`, `POST /detokenize` and `POST /v1/chat/completions/render`.

Names and shapes are vLLM's.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from qwen3_a8w8.engine.sampling_params import MAX_TOP_K
from qwen3_a8w8.openai.chat.request import Message, Tool
from qwen3_a8w8.openai.request import FieldError, RequestModel
from qwen3_a8w8.openai.response import ResponseModel


class TokenizeRequest(RequestModel):
    """Text, or a conversation, to encode."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    tools: list[Tool] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _check_one_source(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise FieldError("send either prompt or messages", "prompt")
        return self


class TokenizeResponse(ResponseModel):
    """Ids of a text; `token_strs` if requested."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(RequestModel):
    """Ids to decode, including special tokens."""

    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0, le=MAX_TOP_K)]]


class DetokenizeResponse(ResponseModel):
    """The text."""

    prompt: str


class RenderResponse(ResponseModel):
    """The prompt that a chat completion request would send to the model."""

    prompt: str
    prompt_token_ids: list[int]
    count: int
    max_model_len: int
