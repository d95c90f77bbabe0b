"""Carrying a stream over lost replicas, without any."""

import pickle
from dataclasses import replace
from types import SimpleNamespace

import pytest

from deployments.replicas.failover import EngineLost, resumed_stream, retried, with_time_left
from deployments.settings import FailoverSettings
from qwen3_a8w8.engine.request import EngineRequest, TokenEvent
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.errors import (
    EngineDeadError,
    EngineNotReadyError,
    InvalidRequestError,
    RequestFailedError,
)

REQUEST = EngineRequest((1, 2), SamplingParams(max_tokens=6, seed=0))
SETTINGS = FailoverSettings(max_resumes=2, timeout_s=120)


class CountingModel:
    """A model that counts: token k of the output is 100 + k. Crashes at the given tokens."""

    def __init__(self, *crashes):
        self.crashes = list(crashes)
        self.requests = []

    async def open(self, request):
        self.requests.append(request)
        crash = self.crashes.pop(0) if self.crashes else None
        if crash == "refuses":
            raise EngineNotReadyError("going")
        yield TokenEvent(0)
        for index in range(len(request.output_token_ids), 6):
            if crash == index:
                raise EngineDeadError("killed")
            if crash == -index:
                return
            yield TokenEvent(0, (100 + index,), (None,), "length" if index == 5 else None)


async def tokens_of(model, settings=SETTINGS):
    stream = resumed_stream(model.open, REQUEST, settings)
    events = [event async for event in stream if not isinstance(event, EngineLost)]
    assert events[0].token_ids == ()
    assert [e.finish_reason for e in events] == [None] * (len(events) - 1) + ["length"]
    return [token for event in events for token in event.token_ids]


@pytest.mark.parametrize(
    "crashes",
    [(), (0,), (3,), (5,), (2, 4), ("refuses",) * 4, ("refuses", 3, "refuses", 4), (-3,)],
)
async def test_stream_is_unbroken_over_every_kind_of_loss(crashes):
    model = CountingModel(*crashes)
    assert await tokens_of(model) == [100, 101, 102, 103, 104, 105]


async def test_loss_is_told_between_the_tokens_that_it_separates():
    model = CountingModel("refuses", 2, "refuses", 2, 5)
    settings = FailoverSettings(max_resumes=3, timeout_s=120)
    events = [event async for event in resumed_stream(model.open, REQUEST, settings)]
    # The first refusal comes before anything was accepted; the second one is another wait.
    what = ["lost" if isinstance(event, EngineLost) else event.token_ids for event in events]
    lost = ["lost"]
    tokens = [(100 + i,) for i in range(6)]
    assert what == [(), *tokens[:2], *lost * 3, *tokens[2:5], *lost, *tokens[5:]]


async def test_resumed_request_carries_what_was_emitted_and_its_seed():
    model = CountingModel(4)
    await tokens_of(model)
    first, second = model.requests
    assert first == REQUEST
    assert second.prompt_token_ids == (1, 2)
    assert second.output_token_ids == (100, 101, 102, 103)
    assert second.sampling.seed == 0


async def test_request_that_loses_every_replica_is_given_up():
    model = CountingModel(0, 0, 0, 0)
    settings = FailoverSettings(max_resumes=2, max_engine_crashes=9, timeout_s=120)
    with pytest.raises(EngineDeadError, match="3 times"):
        await tokens_of(model, settings)
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


async def test_request_that_crashes_engines_is_blamed_and_not_sent_again():
    model = CountingModel(*[4] * 10)
    with pytest.raises(RequestFailedError, match=r"crashed 3 times in a row.*max_engine_crashes 2"):
        await tokens_of(model)
    assert [request.num_engine_crashes for request in model.requests] == [0, 1, 2]


async def test_request_that_gave_tokens_since_its_last_crash_is_cleared():
    model = CountingModel(1, 4, 5)
    settings = FailoverSettings(max_resumes=9, max_engine_crashes=2, timeout_s=120)
    assert len(await tokens_of(model, settings)) == 6
    # Three tokens between the first two crashes, one between the others.
    assert [request.num_engine_crashes for request in model.requests] == [0, 1, 1, 2]


async def test_crash_in_which_the_request_was_not_computed_does_not_count_against_it():
    crashes = [EngineDeadError("others did it", was_computing=False)] * 6
    seen = []

    async def open_stream(request):
        seen.append(request.num_engine_crashes)
        yield TokenEvent(0)
        if crashes:
            raise crashes.pop()
        yield TokenEvent(0, (1,), (None,), "length")

    settings = FailoverSettings(max_resumes=6, max_engine_crashes=0, timeout_s=120)
    events = [event async for event in resumed_stream(open_stream, REQUEST, settings)]
    assert events[-1].finish_reason == "length"
    assert seen == [0] * 7


async def test_request_that_cannot_be_computed_is_not_sent_again():
    calls = []

    async def fail(request):
        calls.append(request)
        yield TokenEvent(0)
        raise RequestFailedError("no")

    with pytest.raises(RequestFailedError):
        [event async for event in resumed_stream(fail, REQUEST, SETTINGS)]
    assert len(calls) == 1


async def test_time_limit_continues_over_a_loss(monkeypatch):
    now_s = 100.0
    # Not the clock of the whole process: the event loop needs it.
    monkeypatch.setattr(
        "deployments.replicas.failover.time", SimpleNamespace(monotonic=lambda: now_s)
    )
    model = CountingModel(2, 4)
    sent = []

    async def open_stream(request):
        nonlocal now_s
        sent.append(request.timeout_s)
        async for event in model.open(request):
            now_s += 1.0  # an answer, and each token
            yield event

    request = replace(REQUEST, timeout_s=6.5)
    events = [event async for event in resumed_stream(open_stream, request, SETTINGS)]
    assert events[-1].finish_reason == "length"
    # 3 s until the first loss, 3 s until the second one; then next to nothing is left.
    assert sent == [6.5, 3.5, 0.5]
    now_s += 10
    assert with_time_left(request, 100.0).timeout_s == 1e-3
    assert with_time_left(REQUEST, 100.0) is REQUEST


def test_deaths_travel_between_processes():
    error = pickle.loads(pickle.dumps(EngineNotReadyError("going", was_computing=False)))
    assert type(error) is EngineNotReadyError
    assert (str(error), error.was_computing) == ("going", False)
