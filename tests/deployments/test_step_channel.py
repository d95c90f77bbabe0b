"""The socket between a router and its actor."""

import asyncio
import threading

import pytest

from deployments.engine.step_channel import StepChannel, StepServer
from qwen3_a8w8.engine.plan import StepPlan, StepResult
from qwen3_a8w8.errors import EngineDeadError, StepFailedError


def execute(plan):
    if plan.step_id == 1:
        raise StepFailedError("bad step")
    return StepResult(plan.step_id, (), 0.5)


async def test_results_and_errors_come_in_the_order_of_the_plans():
    server = StepServer(execute)
    channel = await StepChannel.connect(server.path)
    first, second, third = (channel.execute(StepPlan(i, release=(7,) * 5000)) for i in range(3))
    assert await third == StepResult(2, (), 0.5)
    assert first.result() == StepResult(0, (), 0.5)
    with pytest.raises(StepFailedError, match="bad step"):
        second.result()
    await channel.close()
    await channel.close()


def test_results_come_on_the_loop_that_serve_uses():
    uvloop = pytest.importorskip("uvloop")

    async def run():
        server = StepServer(execute)
        channel = await StepChannel.connect(server.path)
        result = await channel.execute(StepPlan(0))
        await channel.close()
        return result

    loop = uvloop.new_event_loop()
    try:
        assert loop.run_until_complete(run()) == StepResult(0, (), 0.5)
    finally:
        loop.close()


async def test_actor_that_goes_ends_what_is_pending_and_all_that_follows(tmp_path):
    async def die(reader, writer):
        await reader.readexactly(4)
        writer.close()

    path = str(tmp_path / "steps")
    async with await asyncio.start_unix_server(die, path):
        channel = await StepChannel.connect(path)
        with pytest.raises(EngineDeadError, match="gone") as caught:
            await asyncio.wait_for(channel.execute(StepPlan(0)), 10)
        assert caught.value.was_computing
        with pytest.raises(EngineDeadError, match="gone"):
            await channel.execute(StepPlan(1))
        await channel.close()


async def test_closed_channel_ends_what_is_pending_as_nobodys_fault():
    held = threading.Event()
    server = StepServer(lambda plan: held.wait() and StepResult(plan.step_id, (), 0.0))
    channel = await StepChannel.connect(server.path)
    pending = channel.execute(StepPlan(0))
    await channel.close()
    with pytest.raises(EngineDeadError, match="closed") as caught:
        await pending
    assert not caught.value.was_computing
    held.set()


async def test_nobody_listens_any_more():
    server = StepServer(execute)
    server.close()
    server.close()
    with pytest.raises(EngineDeadError, match="can't be reached"):
        await StepChannel.connect(server.path)
