import json

import httpx
import pytest
from openai import OpenAI
from openai._streaming import Stream
from openai.types.chat import ChatCompletionChunk

from deployments.http.framing import DONE_FRAME, KEEP_ALIVE_FRAME, OpenAiFraming
from qwen3_a8w8.errors import (
    CapacityError,
    ContextLengthError,
    EngineDeadError,
    InvalidRequestError,
    UnsupportedBatchSizeError,
)
from qwen3_a8w8.openai.chat.writer import ChatWriter
from qwen3_a8w8.openai.errors import error_body
from qwen3_a8w8.openai.response import ResponseContext, ResponseIdentity
from qwen3_a8w8.text.outputs import OutputDelta

FRAMING = OpenAiFraming()
TEXT = "line\nbreak \r\n \u2028 data: [DONE] 你好"


def chat_frames():
    stream = ChatWriter(ResponseContext(ResponseIdentity.new("chatcmpl-", "m"), ((1,),)))
    chunks = stream.feed(0, OutputDelta(TEXT, (1,), (), "stop"))
    return [FRAMING.event(chunk) for chunk in chunks]


def read_with_client(body):
    """The frames as the official client's stream reader sees them."""
    transport = httpx.MockTransport(
        lambda request: httpx.Response(
            200, content=body.encode(), headers={"content-type": FRAMING.media_type}
        )
    )
    with OpenAI(
        api_key="x", base_url="http://test/v1", http_client=httpx.Client(transport=transport)
    ) as client:
        stream = client.chat.completions.create(model="m", messages=[], stream=True)
        assert isinstance(stream, Stream)
        return list(stream)


def test_frames_are_read_by_the_official_client():
    chunks = read_with_client(KEEP_ALIVE_FRAME + "".join(chat_frames()) + DONE_FRAME)
    assert all(isinstance(chunk, ChatCompletionChunk) for chunk in chunks)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_frame_is_one_data_line():
    for frame in chat_frames():
        assert frame.startswith("data: {")
        assert frame.endswith("}\n\n")
        assert "\n" not in frame[:-2]
        assert "\r" not in frame


def test_error_frame_raises_in_the_official_client():
    from openai import APIError

    body = "".join(chat_frames()[:1]) + FRAMING.error(EngineDeadError("the device is gone"), None)
    with pytest.raises(APIError, match="the device is gone"):
        read_with_client(body)


@pytest.mark.parametrize(
    ("error", "kind", "param", "code"),
    [
        (InvalidRequestError("m", param="n"), "invalid_request_error", "n", None),
        (InvalidRequestError("m", code="c"), "invalid_request_error", None, "c"),
        (ContextLengthError("m"), "invalid_request_error", None, "context_length_exceeded"),
        (UnsupportedBatchSizeError("m"), "invalid_request_error", None, "unsupported_batch_size"),
        (CapacityError("m"), "overloaded_error", None, "server_overloaded"),
        (EngineDeadError("m"), "server_error", None, "engine_dead"),
    ],
)
def test_error_body_has_the_openai_shape(error, kind, param, code):
    expected = {"error": {"message": "m", "type": kind, "param": param, "code": code}}
    assert error_body(error) == expected
    assert json.loads(FRAMING.error(error, None).removeprefix("data: ")) == expected


def test_error_body_explicit_code_goes_before_the_exceptions_own():
    assert error_body(InvalidRequestError("m", code="a"), code="b")["error"]["code"] == "b"


def test_error_body_of_a_bug_contains_no_internals():
    body = error_body(RuntimeError("secret path"))["error"]
    assert "secret" not in body["message"]
    assert (body["type"], body["code"]) == ("server_error", "internal_error")
