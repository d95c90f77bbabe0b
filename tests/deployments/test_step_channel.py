"""The socket between a batch router and its actor."""

import asyncio
import threading

import pytest

from deployments.engine.step_channel import StepChannel, StepServer
from qwen3_a8w8.engine.plan import StepPlan, StepResult
from qwen3_a8w8.errors import EngineDeadError, StepFailedError

DEADLINE_S = 60


def execute(plan):
    if plan.step_id == 1:
        raise StepFailedError("bad step")
    return StepResult(plan.step_id, (), 0.5)


async def connect(path):
    """A channel, and the queue that its answers go to."""
    channel = await StepChannel.connect(path)
    answers = asyncio.Queue()
    channel.start(answers.put_nowait)
    return channel, answers


async def next_of(answers):
    return await asyncio.wait_for(answers.get(), DEADLINE_S)


async def test_results_and_errors_come_in_the_order_of_the_plans():
    server = StepServer(execute)
    channel, answers = await connect(server.path)
    for i in range(3):
        channel.send(StepPlan(i, release=(7,) * 5000))
    assert await next_of(answers) == StepResult(0, (), 0.5)
    failure = await next_of(answers)
    assert isinstance(failure, StepFailedError)
    assert str(failure) == "bad step"
    assert await next_of(answers) == StepResult(2, (), 0.5)
    await channel.close()
    await channel.close()


def test_results_come_on_the_loop_that_serve_uses():
    uvloop = pytest.importorskip("uvloop")

    async def run():
        server = StepServer(execute)
        channel, answers = await connect(server.path)
        channel.send(StepPlan(0))
        result = await next_of(answers)
        await channel.close()
        return result

    loop = uvloop.new_event_loop()
    try:
        assert loop.run_until_complete(run()) == StepResult(0, (), 0.5)
    finally:
        loop.close()


async def test_actor_that_goes_is_reported_once(tmp_path):
    async def die(reader, writer):
        await reader.readexactly(4)
        writer.close()

    path = str(tmp_path / "steps")
    async with await asyncio.start_unix_server(die, path):
        channel, answers = await connect(path)
        channel.send(StepPlan(0))
        error = await next_of(answers)
        assert isinstance(error, EngineDeadError)
        assert "gone" in str(error)
        assert error.was_computing
        channel.send(StepPlan(1))  # nobody is there: not an error of its own
        await channel.close()
        assert answers.empty()


async def test_actor_that_goes_before_the_start_is_reported_at_the_start(tmp_path):
    gone = asyncio.Event()

    async def die(reader, writer):
        writer.close()
        gone.set()

    path = str(tmp_path / "steps")
    async with await asyncio.start_unix_server(die, path):
        channel = await StepChannel.connect(path)
        await gone.wait()
        await channel.wait_closed()
        answers = asyncio.Queue()
        channel.start(answers.put_nowait)
        assert isinstance(await next_of(answers), EngineDeadError)


async def test_closed_channel_delivers_nothing_more():
    held = threading.Event()
    server = StepServer(lambda plan: held.wait() and StepResult(plan.step_id, (), 0.0))
    channel, answers = await connect(server.path)
    channel.send(StepPlan(0))
    await channel.close()
    held.set()
    assert answers.empty()


async def test_nobody_listens_any_more():
    server = StepServer(execute)
    server.close()
    server.close()
    with pytest.raises(EngineDeadError, match="can't be reached"):
        await StepChannel.connect(server.path)


class Unpicklable(Exception):
    def __reduce__(self):
        raise TypeError("not this one")


@pytest.mark.parametrize("error", [Unpicklable(), SystemExit(3)])
async def test_plan_that_cannot_be_answered_ends_the_channel(error):
    def fail(plan):
        raise error

    channel, answers = await connect(StepServer(fail).path)
    channel.send(StepPlan(0))
    assert isinstance(await next_of(answers), EngineDeadError)
    await channel.close()
