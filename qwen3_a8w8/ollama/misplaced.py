"""Fields that Ollama's bodies don't have and that would change the answer: refused by name.

They are fields of chat and text completions, of the other of Ollama's bodies, or options that stand
beside `options` instead of in it. All others that no model knows are named in a header.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qwen3_a8w8.openai.chat.request import ChatRequest
from qwen3_a8w8.openai.completions.request import CompletionRequest
from qwen3_a8w8.openai.foreign_fields import REFUSED, check_refused

Refused = Mapping[str, tuple[tuple[Any, ...], str]]

OPTIONS: Mapping[str, str] = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "seed": "seed",
    "stop": "stop",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repeat_penalty": "repetition_penalty",
}
"""Options, and the fields of a completion that they are."""

_WITHOUT_EFFECT = frozenset(
    {
        "cache_salt",
        "metadata",
        "priority",
        "skip_special_tokens",
        "stream_options",
        "strict_max_tokens",
        "timeout_s",
        "timings_per_token",
        "truncation_side",
        "user",
    }
)
"""Fields of completions that say nothing about the text of the answer."""

_ELSEWHERE: Refused = dict.fromkeys(
    (ChatRequest.model_fields.keys() | CompletionRequest.model_fields.keys()) - _WITHOUT_EFFECT,
    ((False, [], {}, ""), "this API doesn't have it; use /v1/chat/completions or /v1/completions"),
)

_COMPLETION_FIELDS: Refused = {
    **_ELSEWHERE,
    **REFUSED,
    "include_reasoning": ((True,), "use think"),
    "max_completion_tokens": ((), "use options.num_predict"),
    "max_tokens": ((), "use options.num_predict"),
    "n": ((1,), "there is one answer; use /v1/chat/completions"),
    "n_predict": ((-1,), "use options.num_predict"),
    "reasoning_effort": ((), "use think"),
    "repetition_penalty": ((1, 1.0), "use options.repeat_penalty"),
    "response_format": ((), "use format"),
    "separate_reasoning": ((True,), "use think"),
}

_BESIDE: Refused = {
    **_COMPLETION_FIELDS,
    **{name: ((), f"put it into options.{name}") for name in (*OPTIONS, "num_predict")},
}

_OF_CHAT: Refused = {
    **_BESIDE,
    "context": (([],), "put the conversation into messages"),
    "prompt": (("",), "put it into messages, or use /api/generate"),
    "raw": ((False,), "use /api/generate"),
    "system": (("",), "put it into messages"),
    "template": (("",), "only the checkpoint's template is run"),
}

_OF_GENERATE: Refused = {
    **_BESIDE,
    "messages": (([],), "use /api/chat"),
    "tools": (([],), "use /api/chat"),
}


def check_chat_fields(fields: Mapping[str, Any]) -> None:
    """Checks fields that the body of `/api/chat` doesn't have.

    Raises:
        FieldError: one would change the answer.
    """
    check_refused(fields, _OF_CHAT)


def check_generate_fields(fields: Mapping[str, Any]) -> None:
    """Checks fields that the body of `/api/generate` doesn't have; errors as for chat."""
    check_refused(fields, _OF_GENERATE)


def check_options(fields: Mapping[str, Any]) -> None:
    """Checks options that aren't Ollama's; errors as for chat, without the path of `options`."""
    check_refused(fields, _COMPLETION_FIELDS)
