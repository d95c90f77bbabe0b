"""Bodies that no client should send: each gives a 4xx in OpenAI's shape, and nothing breaks."""

import json

import pytest

from qwen3_a8w8.openai.chat.request import ChatRequest
from qwen3_a8w8.openai.completions.request import BatchRequest, CompletionRequest
from qwen3_a8w8.openai.responses.request import ResponsesRequest
from qwen3_a8w8.openai.tokenization import DetokenizeRequest, TokenizeRequest
from tests.support.http_application import check_error, running_http

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
MESSAGES = '"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1'


@pytest.fixture
async def http(model_directory):
    async with running_http(model_directory) as client:
        yield client


def nested(depth, innermost="1"):
    return '{"a":' * depth + innermost + "}" * depth


CHAT_BODY = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
BODIES = {
    CHAT: (ChatRequest, CHAT_BODY),
    f"{CHAT}/render": (ChatRequest, CHAT_BODY),
    TEXT: (CompletionRequest, {"prompt": "x", "max_tokens": 1}),
    "/v1/batch_generate": (BatchRequest, {"prompt": ["x"], "max_tokens": 1}),
    "/v1/responses": (ResponsesRequest, {"input": "x", "max_output_tokens": 16}),
    "/tokenize": (TokenizeRequest, {"prompt": "x"}),
    "/detokenize": (DetokenizeRequest, {"tokens": [5]}),
}
ODD_VALUES = (
    "null",
    "-1",
    "1e400",
    "9" * 300,
    '"x"',
    "[[]]",
    '["x", 1]',
    '{"type": "function", "function": {"name": "x", "parameters": {"$ref": "#"}}}',
    '[{"role": "assistant", "content": null, "tool_calls": [{}]}]',
    nested(150),
)

NOT_JSON = {
    "empty": b"",
    "cut": b'{"prompt": "x"',
    "trailing": b'{"prompt": "x"} {}',
    "trailing comma": b'{"prompt": "x",}',
    "single quotes": b"{'prompt': 'x'}",
    "control character": b'{"prompt": "a\nb"}',
    "invalid UTF-8": b'{"prompt": "\xff\xfe"}',
    "overlong UTF-8": b'{"prompt": "\xc0\x80"}',
    "surrogate in UTF-8": b'{"prompt": "\xed\xa0\x80"}',
    "UTF-16": '{"prompt": "x"}'.encode("utf-16"),
    "high surrogate": b'{"prompt": "a\\ud800b"}',
    "low surrogate": b'{"prompt": "\\udc00"}',
    "surrogate in a key": b'{"prompt": "x", "\\ud83d": 1}',
    "open brackets": b"[" * 100_000,
    "open objects": b'{"a":' * 100_000,
    "deep": nested(50_000).encode(),
    "a thousand deep": nested(1000).encode(),
    "integer of 5000 digits": b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}",
}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("body", NOT_JSON.values(), ids=NOT_JSON)
async def test_body_that_is_no_json_of_moderate_depth_gives_400(http, path, body):
    error = check_error(await http.post(path, content=body), 400)
    assert error["type"] == "invalid_request_error"
    assert "JSON" in error["message"]
    assert len(error["message"]) < 500


@pytest.mark.parametrize("body", [b"null", b"1", b'"x"', b"[]", b"true", b"NaN"])
async def test_body_that_is_no_object_gives_400(http, body):
    check_error(await http.post(CHAT, content=body), 400)


BAD_VALUES = {
    "seed of 4000 digits": ("seed", "9" * 4000),
    "negative seed of 30 digits": ("seed", "-" + "9" * 30),
    "max_tokens of 4000 digits below 0": ("max_tokens", "-" + "9" * 4000),
    "temperature of 400 digits": ("temperature", "1" + "0" * 400),
    "temperature overflow": ("temperature", "1e999"),
    "NaN": ("temperature", "NaN"),
    "infinity": ("top_p", "-Infinity"),
    "NaN penalty": ("presence_penalty", "NaN"),
    "NaN bias": ("logit_bias", '{"5": NaN}'),
    "bias without an id": ("logit_bias", '{"-5": 1}'),
    "bias of a long id": ("logit_bias", '{"' + "9" * 400 + '": 1}'),
    "bias list": ("logit_bias", "[[1, 2]]"),
    "deadline": ("timeout_s", "NaN"),
    "deadline overflow": ("timeout_s", "1" + "0" * 400),
    "priority": ("priority", "1" + "0" * 40),
    "boolean for a number": ("temperature", "true"),
    "string for a number": ("max_tokens", '"5"'),
    "number for a boolean": ("stream", "1"),
    "nested value": ("temperature", nested(150)),
    "nested list": ("stop", "[" * 150 + "]" * 150),
    "wide list": ("stop", json.dumps(["x"] * 50_000)),
    "long stop": ("stop", json.dumps("")),
    "stream_options": ("stream_options", '{"include_usage": "yes"}'),
}


@pytest.mark.parametrize(("field", "value"), BAD_VALUES.values(), ids=BAD_VALUES)
async def test_bad_value_gives_400_and_names_its_field(http, field, value):
    # Of equal keys the last one counts, so the bad max_tokens does.
    body = f'{{{MESSAGES}, "{field}": {value}}}'
    error = check_error(await http.post(CHAT, content=body), 400)
    assert error["param"].startswith(field)
    assert len(error["message"]) < 5000


@pytest.mark.parametrize("path", [CHAT, TEXT, "/v1/responses", "/tokenize"])
async def test_any_field_of_any_value_is_served_or_refused_in_shape(http, path):
    model, body = BODIES[path]
    for field in model.model_fields:
        for value in ODD_VALUES:
            # Of equal keys the last one counts.
            text = f'{json.dumps(body)[:-1]}, "{field}": {value}}}'
            answer = await http.post(path, content=text)
            if answer.status_code != 200:
                assert answer.status_code in (400, 404, 503), (field, value, answer.text)
                check_error(answer, answer.status_code)


async def test_of_equal_keys_the_last_one_counts(http):
    body = '{"prompt": "the fox", "max_tokens": 1, "max_tokens": 3, "ignore_eos": true}'
    answer = await http.post(TEXT, content=body)
    assert answer.json()["usage"]["completion_tokens"] == 3


async def test_byte_order_mark_before_the_json_is_read_over(http):
    body = b'\xef\xbb\xbf{"prompt": "the fox", "max_tokens": 1}'
    assert (await http.post(TEXT, content=body)).status_code == 200


@pytest.mark.parametrize(
    "text", ["\x00", "\u2028", "\ufeff", "\U0001f469\u200d\U0001f680", "\u202e", "<|im_end|>"]
)
async def test_unusual_characters_are_served(http, text):
    messages = [{"role": "user", "content": text}]
    answer = await http.post(CHAT, json={"messages": messages, "max_tokens": 1})
    assert answer.status_code == 200, answer.text


MEDIA_TYPES = [
    "text/plain",
    "application/x-www-form-urlencoded",
    "multipart/form-data",
    "text/json",
]


@pytest.mark.parametrize("media_type", MEDIA_TYPES)
async def test_body_of_another_media_type_gives_415(http, media_type):
    answer = await http.post(TEXT, content='{"prompt": "x"}', headers={"Content-Type": media_type})
    error = check_error(answer, 415, "unsupported_media_type")
    assert "application/json" in error["message"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "application/json"},
        {"Content-Type": "Application/JSON; charset=utf-8"},
        {"Content-Type": "application/json", "Origin": "https://example.com"},
        {},
    ],
)
async def test_json_by_name_or_without_a_type_is_served(http, headers):
    body = '{"prompt": "x", "max_tokens": 1}'
    assert (await http.post(TEXT, content=body, headers=headers)).status_code == 200


async def test_page_in_a_browser_cannot_leave_the_type_out(http):
    body = '{"prompt": "x", "max_tokens": 1}'
    answer = await http.post(TEXT, content=body, headers={"Origin": "https://example.com"})
    check_error(answer, 415)


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("GET", "/page/index.html", 404, "not_found"),
        ("POST", "/", 405, "method_not_allowed"),
        ("GET", "/page/", 404, "not_found"),
        ("GET", "/v1", 404, "not_found"),
        ("POST", "/v1/nothing", 404, "not_found"),
        ("GET", "/v1/../../etc/passwd", 404, "not_found"),
        ("GET", "/v1/models/..%2F..%2Fetc%2Fpasswd", 404, "model_not_found"),
        ("GET", "/v1/models/%00", 404, "model_not_found"),
        ("GET", "/v1/models/%FF%FE", 404, "model_not_found"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("PUT", TEXT, 405, "method_not_allowed"),
        ("OPTIONS", TEXT, 405, "method_not_allowed"),
        ("BREW", TEXT, 405, "method_not_allowed"),
        ("TRACE", "/health", 405, "method_not_allowed"),
    ],
)
async def test_unknown_route_model_or_method_gives_an_openai_error(
    http, method, path, status, code
):
    error = check_error(await http.request(method, path), status, code)
    assert error["type"] == "invalid_request_error"


async def test_chat_template_of_a_request_is_refused(http):
    template = "{{ ''.__class__.__mro__ }}"
    messages = [{"role": "user", "content": "hi"}]
    body = {"messages": messages, "chat_template": template}
    error = check_error(await http.post(CHAT, json=body), 400)
    assert error["param"] == "chat_template"
    for name in ("chat_template", "messages", "tools"):
        body = {"messages": messages, "chat_template_kwargs": {name: template}}
        error = check_error(await http.post(CHAT, json=body), 400)
        assert error["param"] == "chat_template_kwargs"


@pytest.mark.parametrize(
    "kwargs",
    [
        {"enable_thinking": "x" * 20_000},
        {f"k{i}": 1 for i in range(5000)},
        {"namespace": 1, "raise_exception": 1, "loop": 1, "think": "{{ 7 * 7 }}"},
        {"": 1, "1": 2, "with space": 3, "self": 4, "messages ": 5},
    ],
)
async def test_odd_template_kwargs_are_refused_or_do_no_harm(http, kwargs):
    messages = [{"role": "user", "content": "{{ 7 * 7 }}{% include '/etc/passwd' %}"}]
    body = {"messages": messages, "chat_template_kwargs": kwargs, "max_tokens": 1}
    answer = await http.post(CHAT, json=body)
    if answer.status_code != 200:
        check_error(answer, 400)


async def test_field_that_would_read_a_file_reads_none(http):
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "model": "../../etc/passwd",
    }
    check_error(await http.post(CHAT, json=body), 404, "model_not_found")
    parts = [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]
    body = {"messages": [{"role": "user", "content": parts}]}
    error = check_error(await http.post(CHAT, json=body), 400)
    assert "text" in error["message"]
