"""The actor without Ray: steps over the channel, grammars and its end on other threads."""

import asyncio
import gc
import threading

import pytest

from deployments.engine.npu_actor import NpuActor
from deployments.engine.step_channel import StepChannel
from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.engine.plan import StepPlan, StepResult
from qwen3_a8w8.errors import EngineDeadError, InvalidRequestError
from qwen3_a8w8.text.structured import StructuredOutput
from tests.support.fakes import make_capabilities

GRAMMAR = StructuredOutput(regex="[a-z]+", param="guided_regex")
DEADLINE_S = 120


class HeldRunner:
    """Its steps begin and then wait to be let go."""

    def __init__(self):
        self.capabilities = make_capabilities()
        self.has_begun = threading.Event()
        self.may_end = threading.Event()
        self.calls = []

    def execute(self, plan):
        self.calls.append("step begins")
        self.has_begun.set()
        assert self.may_end.wait(DEADLINE_S)
        self.calls.append("step ends")
        return StepResult(plan.step_id, (), 0.5)

    def prepare_grammar(self, structured):
        self.calls.append(structured.regex)
        raise InvalidRequestError("no such grammar", param=structured.param)

    def close(self):
        self.calls.append("closed")


runners = []


def make_runner(model, config):
    runners.append(HeldRunner())
    return runners[-1]


@pytest.fixture
def actor():
    actor = NpuActor("none", EngineConfig(), f"{__name__}:make_runner")
    actor.start()
    yield actor
    actor.close()
    gc.unfreeze()


async def test_grammar_is_prepared_while_a_step_runs_and_the_runner_closed_after_it(actor):
    runner = runners[-1]
    channel = await StepChannel.connect(actor.listen())
    answers = asyncio.Queue()
    channel.start(answers.put_nowait)
    channel.send(StepPlan(0))
    assert await asyncio.to_thread(runner.has_begun.wait, DEADLINE_S)
    with pytest.raises(InvalidRequestError, match="no such grammar"):
        await asyncio.wait_for(asyncio.to_thread(actor.prepare_grammar, GRAMMAR), DEADLINE_S)
    closing = asyncio.create_task(asyncio.to_thread(actor.close))
    assert actor.ping()["num_steps"] == 0
    runner.may_end.set()
    assert await asyncio.wait_for(answers.get(), DEADLINE_S) == StepResult(0, (), 0.5)
    await closing
    assert runner.calls == ["step begins", "[a-z]+", "step ends", "closed"]
    assert actor.ping()["num_steps"] == 1
    channel.send(StepPlan(1))
    error = await asyncio.wait_for(answers.get(), DEADLINE_S)
    assert isinstance(error, EngineDeadError)
    assert "no runner" in str(error)
    with pytest.raises(EngineDeadError, match="no runner"):
        actor.prepare_grammar(GRAMMAR)
    await channel.close()
