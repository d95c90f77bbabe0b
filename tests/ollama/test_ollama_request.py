"""Conversion of Ollama's bodies to chat and completion requests."""

import pytest

from qwen3_a8w8.errors import InvalidRequestError
from qwen3_a8w8.ollama.request import OllamaChatRequest, OllamaGenerateRequest
from qwen3_a8w8.openai.request import validate_request

USER = {"role": "user", "content": "hi"}
CALL = {"function": {"name": "now", "arguments": {"x": "é"}}}


def chat_of(**fields):
    body = {"model": "m", "messages": [USER]} | fields
    return validate_request(OllamaChatRequest, body).to_chat()


def generate_of(**fields):
    return validate_request(OllamaGenerateRequest, {"model": "m", "prompt": "hi"} | fields)


def test_conversation_becomes_chat_messages():
    messages = [
        {"role": "system", "content": "s"},
        USER,
        {"role": "assistant", "content": None, "thinking": "t", "tool_calls": [CALL]},
        {"role": "tool", "content": "12", "tool_name": "now"},
    ]
    chat = chat_of(messages=messages)
    assert chat.template_messages() == [
        {"role": "system", "content": "s"},
        USER,
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "t",
            "tool_calls": [
                {
                    "id": None,
                    "type": "function",
                    "function": {"name": "now", "arguments": {"x": "é"}},
                }
            ],
        },
        {"role": "tool", "content": "12", "name": "now"},
    ]
    assert chat.has_generation_prompt


@pytest.mark.parametrize(
    ("last", "is_continued"),
    [
        ({"role": "assistant", "content": "The capital"}, True),
        ({"role": "assistant", "thinking": "well"}, True),
        ({"role": "assistant", "content": ""}, False),
        ({"role": "assistant", "content": "x", "tool_calls": [CALL]}, False),
        (USER, False),
    ],
)
def test_assistants_last_text_is_continued(last, is_continued):
    chat = chat_of(messages=[USER, last])
    assert bool(chat.continue_final_message) is is_continued
    assert chat.has_generation_prompt is not is_continued


@pytest.mark.parametrize(
    ("think", "kwargs"),
    [
        (None, {}),
        (True, {"enable_thinking": True}),
        (False, {"enable_thinking": False}),
        ("low", {"enable_thinking": True}),
        ("max", {"enable_thinking": True}),
        ("none", {"enable_thinking": False}),
    ],
)
def test_think_switches_thinking(think, kwargs):
    assert chat_of(think=think).template_kwargs() == kwargs
    assert generate_of(think=think).to_chat().template_kwargs() == kwargs


@pytest.mark.parametrize(
    ("num_predict", "max_tokens"), [(None, None), (-1, None), (-2, None), (7, 7), (7.0, 7)]
)
def test_num_predict_is_the_limit(num_predict, max_tokens):
    assert chat_of(options={"num_predict": num_predict}).max_tokens == max_tokens


def test_whole_numbers_may_be_written_as_floats():
    chat = chat_of(options={"top_k": 40.0, "seed": -1.0, "num_ctx": 4096.0})
    assert (chat.top_k, chat.seed) == (40, -1)
    for value in (40.5, "40", True, 1e999):
        with pytest.raises(InvalidRequestError, match=r"options\.top_k is"):
            chat_of(options={"top_k": value})


def test_raw_prompt_is_a_text_completion_without_a_limit_of_its_own():
    completion = generate_of(raw=True, options={"stop": ["x"], "repeat_penalty": 1.2})
    completion = completion.to_completion()
    assert completion.prompt == ["hi"]
    assert (completion.stop, completion.repetition_penalty) == (["x"], 1.2)
    assert completion.max_tokens > 2**20


def test_format_is_a_schema_or_json():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert chat_of(format=schema).response_format.schema_value == schema
    assert chat_of(format="json").response_format.type == "json_object"
    assert chat_of(format="").response_format is None


SETTINGS_WITHOUT_EFFECT = {
    "num_ctx": 10**7,
    "num_gpu": 1,
    "num_thread": 4,
    "num_keep": 5,
    "mirostat": 0,
    "mirostat_tau": 5.0,
    "typical_p": 1.0,
    "tfs_z": 1,
    "repeat_last_n": 64,
    "penalize_newline": True,
    "use_mmap": True,
}


def test_settings_of_another_runtime_are_no_error():
    chat_of(options=SETTINGS_WITHOUT_EFFECT, keep_alive="5m", truncate=True, shift=True)
    neutral = {"user": "u", "stream_options": {}, "ignore_eos": False, "n": 1, "stop": None}
    assert chat_of(**neutral).num_choices == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": 0}, r"temperature is 0, .* put it into options\.temperature"),
        ({"seed": 5}, r"options\.seed"),
        ({"num_predict": 5}, r"options\.num_predict"),
        ({"max_tokens": 5}, r"options\.num_predict"),
        ({"response_format": {"type": "json_object"}}, "use format"),
        ({"reasoning_effort": "low"}, "use think"),
        ({"system": "x"}, "put it into messages"),
        ({"template": "x"}, "only the checkpoint's template is run"),
        ({"prompt": "x"}, "put it into messages"),
        ({"raw": True}, "use /api/generate"),
        ({"logit_bias": {"1": 5}}, "logit_bias is an object"),
        ({"n": 2}, "n is 2"),
        ({"options": {"max_tokens": 5}}, r"^options\.max_tokens is 5"),
        ({"options": {"repetition_penalty": 1.5}}, r"use options\.repeat_penalty"),
        ({"options": {"min_tokens": 5}}, r"^options\.min_tokens is 5"),
        ({"options": {"typical_p": 0.7}}, r"^options\.typical_p is 0\.7"),
    ],
)
def test_what_would_change_the_answer_is_refused_by_name(fields, message):
    with pytest.raises(InvalidRequestError, match=message):
        chat_of(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"raw": True, "system": "x"}, "system is set with raw"),
        ({"raw": True, "logprobs": True}, "logprobs is set with raw"),
        ({"messages": [USER]}, "use /api/chat"),
        ({"tools": [{}]}, "use /api/chat"),
        ({"top_p": 0.5}, r"options\.top_p"),
    ],
)
def test_what_a_generation_does_not_have_is_refused_by_name(fields, message):
    with pytest.raises(InvalidRequestError, match=message):
        generate_of(**fields)
