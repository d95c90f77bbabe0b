"""Carrying a stream over lost replicas, without any."""

import pytest

from deployments.errors import EngineNotReadyError
from deployments.resume import resumed_stream, retried
from deployments.settings import FailoverSettings
from qwen3_a8w8.engine.request import EngineRequest, TokenEvent
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.errors import EngineDeadError, InvalidRequestError

REQUEST = EngineRequest((1, 2), SamplingParams(max_tokens=6, seed=0))
SETTINGS = FailoverSettings(max_resumes=2, timeout_s=10)


class CountingModel:
    """A model that counts: token k of the output is 100 + k. Dies where it is told to."""

    def __init__(self, *deaths):
        self.deaths = list(deaths)
        self.requests = []

    async def open(self, request):
        self.requests.append(request)
        death = self.deaths.pop(0) if self.deaths else None
        if death == "refuses":
            raise EngineNotReadyError("going")
        yield TokenEvent(0)
        for index in range(len(request.output_token_ids), 6):
            if death == index:
                raise EngineDeadError("killed")
            if death == -index:
                return
            yield TokenEvent(0, (100 + index,), (None,), "length" if index == 5 else None)


async def tokens_of(model, settings=SETTINGS):
    events = [event async for event in resumed_stream(model.open, REQUEST, settings)]
    assert events[0].token_ids == ()
    assert [e.finish_reason for e in events] == [None] * (len(events) - 1) + ["length"]
    return [token for event in events for token in event.token_ids]


@pytest.mark.parametrize(
    "deaths",
    [(), (0,), (3,), (5,), (2, 4), ("refuses",) * 4, ("refuses", 3, "refuses", 4), (-3,)],
)
async def test_stream_is_unbroken_over_every_kind_of_loss(deaths):
    model = CountingModel(*deaths)
    assert await tokens_of(model) == [100, 101, 102, 103, 104, 105]


async def test_resumed_request_carries_what_was_emitted_and_its_seed():
    model = CountingModel(4)
    await tokens_of(model)
    first, second = model.requests
    assert first == REQUEST
    assert second.prompt_token_ids == (1, 2)
    assert second.output_token_ids == (100, 101, 102, 103)
    assert second.sampling.seed == 0


async def test_request_that_kills_every_replica_is_given_up():
    model = CountingModel(0, 0, 0, 0)
    with pytest.raises(EngineDeadError, match="3 times"):
        await tokens_of(model)
    assert len(model.requests) == 3


async def test_no_replica_within_the_time_limit_fails():
    model = CountingModel(*["refuses"] * 100)
    with pytest.raises(EngineDeadError, match=r"within failover\.timeout_s 0"):
        await tokens_of(model, FailoverSettings(timeout_s=0.2))


async def test_what_a_replica_says_of_the_request_is_passed_on_at_once():
    calls = []

    async def refuse(request):
        calls.append(request)
        raise InvalidRequestError("no", param="prompt")
        yield

    with pytest.raises(InvalidRequestError):
        [event async for event in resumed_stream(refuse, REQUEST, SETTINGS)]
    assert len(calls) == 1


async def test_whole_call_is_made_again_after_a_loss():
    losses = [EngineDeadError("killed"), EngineNotReadyError("going")]

    async def call():
        if losses:
            raise losses.pop()
        return "answer"

    assert await retried(call, SETTINGS) == "answer"
