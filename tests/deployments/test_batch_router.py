"""The batch router over a runner whose answers the test holds back."""

import asyncio

import pytest

from deployments.engine.batch_router import BatchRouter
from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.engine.core import EngineCore
from qwen3_a8w8.engine.request import EngineRequest, TokenEvent
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.errors import EngineDeadError
from tests.support.fakes import FakeRunner, expected_outputs, make_capabilities


class HeldRunner:
    """Answers plans in order, each only when the test says so."""

    def __init__(self):
        self.runner = FakeRunner()
        self.pending = []
        self.router = BatchRouter(EngineCore(make_capabilities(), EngineConfig()), self.send)

    def send(self, plan):
        self.pending.append(plan)

    async def release(self):
        self.router.take(self.runner.execute(self.pending.pop(0)))
        await settle()


async def settle():
    """Lets everything run that can."""
    for _ in range(20):
        await asyncio.sleep(0)


def make_request(first=5, *, max_tokens=6):
    return EngineRequest(
        (first, 6, 7), SamplingParams(max_tokens=max_tokens, seed=3, ignore_eos=True)
    )


@pytest.fixture
async def held():
    runner = HeldRunner()
    yield runner.router, runner
    runner.router.close()
    assert runner.router.stats().num_blocks_in_use == 0


async def test_next_plan_is_sent_before_the_result_is_in_and_no_third(held):
    router, runner = held
    router.submit(make_request())
    await settle()
    assert [plan.step_id for plan in runner.pending] == [0, 1]
    await runner.release()
    assert [plan.step_id for plan in runner.pending] == [1, 2]


async def test_arrival_while_a_step_runs_gets_the_free_place_in_flight():
    runner = HeldRunner()
    router = runner.router
    router.submit(make_request(max_tokens=1))
    await settle()
    assert len(runner.pending) == 1  # one token: nothing is left to plan ahead
    router.submit(make_request(50))
    await settle()
    assert len(runner.pending) == 2
    router.close()


async def test_stream_gives_every_token_once(held):
    router, runner = held
    stream = router.submit(make_request())
    reader = asyncio.create_task(stream.whole())
    await settle()
    while runner.pending:
        await runner.release()
    output = await reader
    assert [list(output.token_ids)] == expected_outputs(make_request(), make_capabilities())
    assert output.finish_reason == "length"


async def test_reader_that_was_away_gets_one_event_for_all(held):
    router, runner = held
    stream = router.submit(make_request())
    await settle()
    while runner.pending:
        await runner.release()
    events = [event async for event in stream]
    assert len(events) == 1
    assert len(events[0].token_ids) == 6


async def test_waiting_reader_gets_the_first_token_at_once(held):
    router, runner = held
    stream = router.submit(make_request())
    first = asyncio.create_task(anext(stream))
    await settle()
    await runner.release()
    assert first.done()
    assert len(first.result().token_ids) == 1


async def test_abort_frees_the_blocks_and_may_be_repeated(held):
    router, runner = held
    stream = router.submit(make_request(max_tokens=100))
    await settle()
    assert router.stats().num_blocks_in_use > 0
    router.abort(stream)
    router.abort(stream)
    assert router.stats().num_blocks_in_use == 0
    while runner.pending:
        await runner.release()
    assert runner.runner.known == {}


async def test_runner_that_is_lost_ends_every_stream_with_engine_dead_after_its_tokens():
    runner = HeldRunner()
    router = runner.router
    streams = [router.submit(make_request(first)) for first in (5, 50)]
    await settle()
    for _ in range(3):
        await runner.release()
    assert runner.pending.pop(0).step_id == 3
    router.take(OSError("device lost"))
    await settle()
    for stream in streams:
        event = await anext(stream)
        assert event.token_ids
        assert event.finish_reason is None
        with pytest.raises(EngineDeadError, match="device lost"):
            await anext(stream)
    with pytest.raises(EngineDeadError):
        router.submit(make_request())
    assert router.stats().num_blocks_in_use == 0


async def test_stalled_time_runs_only_while_there_is_work(held):
    router, runner = held
    assert router.stalled_s() == 0.0
    router.submit(make_request())
    await settle()
    assert router.stalled_s() > 0.0
    while runner.pending:
        await runner.release()
    assert router.stalled_s() == 0.0


def test_merged_events_keep_order_and_the_last_reason():
    events = [
        TokenEvent(4, (1,), (None,), num_cached_tokens=8),
        TokenEvent(4, (2,), (None,), finish_reason="stop", stop_token_id=2, num_cached_tokens=8),
    ]
    assert TokenEvent.merged(events) == TokenEvent(
        4, (1, 2), (None, None), finish_reason="stop", stop_token_id=2, num_cached_tokens=8
    )
