"""From recorded bytes and times to tokens and latencies."""

import json

import pytest

from qwen3_a8w8.bench.serve.client import Recording
from qwen3_a8w8.bench.serve.stream import events, read_output


def frame(content) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def text_chunk(text, finish_reason=None):
    return frame({"choices": [{"index": 0, "text": text, "finish_reason": finish_reason}]})


def chat_chunk(delta, finish_reason=None):
    return frame({"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})


DONE = b"data: [DONE]\n\n"
USAGE = frame({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 5}})


def test_events_have_the_time_of_the_read_that_completes_them():
    reads = [
        (1.0, b": ping\n\ndata: a\r\n\r\nda"),
        (2.0, b"ta: b1\ndata:b2\nevent: x\n"),
        (3.0, b"\n"),
        (4.0, b"data: never completed\n"),
    ]
    assert list(events(reads)) == [(1.0, "a"), (3.0, "b1\nb2")]


def test_events_keep_characters_that_are_split_between_reads():
    whole = frame({"é": "€"}).replace(b"\\u20ac", "€".encode())
    reads = [(float(at), whole[at : at + 1]) for at in range(len(whole))]
    ((time_s, data),) = events(reads)
    assert time_s == len(whole) - 1
    assert json.loads(data) == {"é": "€"}


def test_text_stream_gives_times_between_its_chunks():
    reads = [
        (10.5, text_chunk("a")),
        (10.6, text_chunk("")),  # a special token
        (10.9, text_chunk("b", "length") + USAGE + DONE),
    ]
    output = read_output(10.0, reads, prompt_len=7, queue_s=0.25)
    assert output.has_succeeded
    assert (output.ttft_s, output.latency_s) == pytest.approx((0.5, 0.9))
    assert output.itl_s == pytest.approx([0.1, 0.3])
    assert (output.prompt_len, output.output_len, output.text) == (9, 5, "ab")
    assert output.queue_s == 0.25


def test_chat_stream_begins_with_the_first_token_not_with_the_role():
    reads = [
        (1.0, chat_chunk({"role": "assistant", "content": ""})),
        (2.0, chat_chunk({"reasoning_content": "hm"})),
        (3.0, chat_chunk({"content": "yes"})),
        (4.5, chat_chunk({"tool_calls": [{"index": 0}]})),
        (5.0, chat_chunk({}, "stop") + DONE),
    ]
    output = read_output(0.0, reads, prompt_len=7)
    assert (output.ttft_s, output.latency_s) == (2.0, 5.0)
    assert output.itl_s == [1.0, 1.5]
    assert (output.prompt_len, output.output_len, output.text) == (7, 0, "hmyes")


def test_response_without_any_text_ends_when_it_begins():
    output = read_output(0.0, [(2.0, chat_chunk({}, "stop") + DONE)], prompt_len=1)
    assert output.has_succeeded
    assert (output.ttft_s, output.latency_s, output.itl_s) == (2.0, 2.0, [])


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (text_chunk("a"), "the stream broke off before its end"),
        (DONE, "the stream has no chunk with choices"),
        (text_chunk("a") + frame({"error": {"message": "engine lost"}}) + DONE, "engine lost"),
        (b"data: <html>\n\n", "no JSON in the stream: '<html>'"),
    ],
)
def test_incomplete_stream_is_a_failed_request(body, error):
    output = read_output(1.0, [(2.0, body)], prompt_len=7)
    assert not output.has_succeeded
    assert error in output.error
    assert (output.latency_s, output.ttft_s, output.prompt_len) == (0.0, 0.0, 7)


def test_recording_keeps_why_a_request_failed():
    refused = Recording(due_s=1.0, start_s=1.5, status=503, reads=[(2.0, b'{"error": "full"}')])
    assert refused.output(3).error == 'HTTP 503: {"error": "full"}'
    assert refused.output(3).queue_s == 0.5
    lost = Recording(due_s=1.0, start_s=1.0, status=200, error="ClientPayloadError: cut")
    assert lost.output(3).error == "ClientPayloadError: cut"
