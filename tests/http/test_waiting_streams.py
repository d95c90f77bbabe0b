"""What a stream says while it has no engine."""

import asyncio
from contextlib import aclosing

import pytest

from deployments.http.framing import KEEP_ALIVE_FRAME, WAITING_FRAME
from deployments.http.streaming import generation_response
from deployments.replicas.failover import EngineLost
from qwen3_a8w8.engine.request import TokenEvent
from qwen3_a8w8.openai.completions.request import CompletionRequest
from qwen3_a8w8.openai.request import parse_request

BODY = b'{"prompt": "the fox", "max_tokens": 2, "ignore_eos": true, "stream": true}'
NEVER_S = 3600.0


@pytest.fixture
def events(engine, monkeypatch):
    """What the engine says of one sequence that it has accepted, as a test puts it in."""
    queue = asyncio.Queue()

    async def stream(request, places=None):
        with engine.admission.counted(1, places) as accepted:
            accepted()
            yield TokenEvent(0)
            while True:
                yield await queue.get()

    monkeypatch.setattr(engine, "stream", stream)
    return queue


async def start(service, keep_alive_s):
    request = parse_request(CompletionRequest, BODY)
    response = await generation_response(
        await service.start_completion(request), request, keep_alive_s
    )
    return aclosing(response.body_iterator)


async def test_lost_engine_is_told_at_once_and_the_answer_goes_on(service, events):
    async with await start(service, NEVER_S) as frames:
        events.put_nowait(TokenEvent(0, (5,), (None,)))
        assert (await anext(frames)).startswith("data: ")
        events.put_nowait(EngineLost())
        assert await anext(frames) == WAITING_FRAME
        events.put_nowait(TokenEvent(0, (6,), (None,), "length"))
        rest = [frame async for frame in frames]
    assert not any(frame.startswith(":") for frame in rest)
    assert '"finish_reason":"length"' in rest[0]


async def test_comments_say_how_it_is_as_long_as_nothing_comes(service, events):
    async with await start(service, 0.001) as frames:
        assert await anext(frames) == KEEP_ALIVE_FRAME
        events.put_nowait(EngineLost())
        while await anext(frames) == KEEP_ALIVE_FRAME:
            pass
        for _ in range(3):
            assert await anext(frames) == WAITING_FRAME


async def test_no_comment_where_none_is_wanted(service, events):
    async with await start(service, None) as frames:
        events.put_nowait(EngineLost())
        events.put_nowait(TokenEvent(0, (6,), (None,), "length"))
        assert not any([frame.startswith(":") async for frame in frames])
