"""What losses over a Serve handle become, on a handle of our own."""

import asyncio
from types import SimpleNamespace

import pytest
from ray.exceptions import ActorDiedError

from deployments.replicas.client import ReplicaClient
from deployments.settings import FailoverSettings
from qwen3_a8w8.engine.request import EngineRequest, TokenEvent
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.errors import EngineDeadError, EngineNotReadyError, RequestFailedError

pytestmark = pytest.mark.serve

REQUEST = EngineRequest((1, 2), SamplingParams(max_tokens=6, seed=0))


class LostStream:
    """A replica's stream that gives these events before the replica is lost."""

    def __init__(self, events):
        self.events = events

    async def __aiter__(self):
        for event in self.events:
            yield event
        raise ActorDiedError()

    def cancel(self):
        pass


class SilentResponse:
    """An answer that never comes."""

    is_cancelled = False

    def __await__(self):
        return asyncio.Event().wait().__await__()

    def cancel(self):
        self.is_cancelled = True


def client_of(events, **settings):
    method = SimpleNamespace(remote=lambda argument: LostStream(events))
    streams = SimpleNamespace(start_stream=method, start_batch=method)
    handle = SimpleNamespace(options=lambda stream: streams)
    return ReplicaClient(handle, FailoverSettings(timeout_s=120, **settings))


async def test_replicas_lost_before_they_accept_a_request_are_not_held_against_it():
    client = client_of([], max_engine_crashes=0, max_resumes=1)
    with pytest.raises(EngineDeadError, match="lost its replica 2 times"):
        await anext(client.stream(REQUEST))


async def test_replica_lost_with_a_request_it_has_accepted_counts_as_a_crash():
    client = client_of([TokenEvent(0)], max_engine_crashes=0, max_resumes=1)
    with pytest.raises(RequestFailedError, match="crashed 1 times in a row"):
        async for _ in client.stream(REQUEST):
            pass


async def test_replicas_lost_before_they_accept_a_batch_are_not_held_against_it():
    client = client_of([], max_engine_crashes=0, max_resumes=1)
    with pytest.raises(EngineDeadError, match="lost its replica 2 times"):
        await client.generate_batch([REQUEST])


async def test_replica_lost_with_a_batch_it_has_accepted_counts_as_a_crash():
    client = client_of([[]], max_engine_crashes=0, max_resumes=1)
    with pytest.raises(RequestFailedError, match="crashed 1 times in a row"):
        await client.generate_batch([REQUEST])


async def test_replica_that_does_not_answer_is_not_ready_and_its_call_is_cancelled():
    response = SilentResponse()
    handle = SimpleNamespace(
        options=lambda stream: None, check_health=SimpleNamespace(remote=lambda: response)
    )
    with pytest.raises(EngineNotReadyError, match=r"no replica answered within 0\.01 s"):
        await ReplicaClient(handle, FailoverSettings()).check_ready(0.01)
    assert response.is_cancelled
