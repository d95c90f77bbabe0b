"""One engine: the batch router in this process, its actor pinned to a device beside it.

The replica lies in bundle 0 of its placement group and its actor in bundle 1, on the
same node. The actor shares the fate of its replica: when the actor crashes, every stream
ends with an EngineDeadError and the replica's process ends too, so that Serve sends
nothing more to it and starts another. Tokens only; text is the ingress's.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import AsyncIterator
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from deployments.engine.batch_router import BatchRouter, TokenStream
from deployments.engine.npu_actor import RemoteNpuActor
from deployments.engine.step_channel import StepChannel
from deployments.metrics.families import resident_bytes
from deployments.replicas.refusal_log import RefusalFilter
from deployments.replicas.report import ReplicaActivity, ReplicaReport
from deployments.settings import AppSettings
from qwen3_a8w8.engine.admission.queue_limit import Room
from qwen3_a8w8.engine.core import EngineCore
from qwen3_a8w8.engine.plan import RunnerCapabilities
from qwen3_a8w8.engine.request import EngineRequest, TokenEvent
from qwen3_a8w8.errors import ConfigError, EngineDeadError, EngineNotReadyError

ACTOR_BUNDLE = 1

logger = logging.getLogger("ray.serve")


class EngineReplica:
    """The deployment's class; `app.py` gives it its options."""

    # Serve awaits a constructor that is a coroutine; the batch router needs the running loop.
    async def __init__(self, settings: AppSettings) -> None:  # type: ignore[misc]
        """Creates the actor, loads the model there and starts the batch router.

        Raises:
            ConfigError: the settings can't be used.
            CheckpointError: the model can't be read.
            KernelUnavailableError: the device asked for can't run here.
            EngineDeadError: the actor crashed while it loaded.
        """
        logger.addFilter(RefusalFilter())  # Serve logs by the same name
        self._settings = settings
        config = settings.engine.to_config()
        self._actor = _create_actor(settings)
        capabilities = await _answer(self._actor.start.remote())
        logger.info("engine ready: %s", capabilities.description)
        self._actor_pid: int = (await _answer(self._actor.ping.remote()))["pid"]
        self._channel = await StepChannel.connect(await _answer(self._actor.listen.remote()))
        self._router = BatchRouter(EngineCore(capabilities, config), self._channel.send)
        self._channel.start(self._router.take)
        self._num_streams = 0
        self._exit_task: asyncio.Task[None] | None = None
        # What is there stays: the collector needn't go through it while requests run.
        gc.collect()
        gc.freeze()

    async def start_stream(self, request: EngineRequest) -> AsyncIterator[TokenEvent]:
        """Runs one request (`n` = 1).

        Yields:
            An event without tokens as soon as the request is accepted, then one per step (or
            one for several, when the reader is slow); the last one has a finish reason.
            Closing or cancelling the stream aborts the sequence and frees its blocks.

        Raises:
            InvalidRequestError: the request can't be served.
            CapacityError: the queue is full.
            EngineNotReadyError: this replica is shutting down; nothing was started.
            RequestFailedError: the request can't be computed; the engine goes on.
            EngineDeadError: the engine crashed before the end.
        """
        self._check_ready()
        await self._prepare([request])
        stream = self._router.submit(request)
        self._num_streams += 1
        try:
            yield TokenEvent(stream.seq_id)
            async for event in stream:
                yield event
        except EngineDeadError:
            self._exit_soon()
            raise
        finally:
            self._num_streams -= 1
            self._router.abort(stream)

    async def start_batch(self, requests: list[EngineRequest]) -> AsyncIterator[list[TokenEvent]]:
        """Runs exactly 1 or 16 requests as one true batch.

        Yields:
            An empty list as soon as the batch is accepted, then one event for each request, in
            their order, with its whole output. Closing or cancelling the stream aborts the batch.

        Raises:
            UnsupportedBatchSizeError: another number of requests.
            InvalidRequestError: a request can't be served; none was begun.
            CapacityError: the queue is full.
            EngineNotReadyError: this replica is shutting down; nothing was started.
            RequestFailedError: the request can't be computed; the engine goes on.
            EngineDeadError: the engine crashed before the end.
        """
        self._check_ready()
        await self._prepare(requests)
        streams: list[TokenStream] = self._router.submit_batch(requests)
        self._num_streams += 1
        rows = [asyncio.ensure_future(stream.whole()) for stream in streams]
        try:
            yield []
            yield await asyncio.gather(*rows)
        except EngineDeadError:
            self._exit_soon()
            raise
        finally:
            self._num_streams -= 1
            for stream, row in zip(streams, rows, strict=True):
                self._router.abort(stream)
                row.cancel()

    async def capabilities(self) -> RunnerCapabilities:
        """What this replica's runner can do."""
        return self._router.core.capabilities

    async def room(self) -> Room:
        """What this replica would take in now.

        Raises:
            EngineNotReadyError: nothing, it is shutting down.
        """
        self._check_ready()
        return self._router.core.room()

    async def report(self) -> ReplicaReport:
        """Who this replica is, and what its engine holds and has done."""
        return ReplicaReport(
            replica_id=serve.get_replica_context().replica_id.unique_id,
            replica_pid=os.getpid(),
            actor_pid=self._actor_pid,
            stats=self._router.stats(),
            replica_bytes=resident_bytes(os.getpid()),
            actor_bytes=resident_bytes(self._actor_pid),  # always on the same node
        )

    async def activity(self) -> ReplicaActivity:
        """What this replica's engine is doing, sequence by sequence.

        Raises:
            EngineNotReadyError: nothing any more, this replica is shutting down.
        """
        self._check_ready()
        capabilities = self._router.core.capabilities
        return ReplicaActivity(
            replica_id=serve.get_replica_context().replica_id.unique_id,
            decode_batch_sizes=capabilities.decode_batch_sizes,
            max_model_len=capabilities.max_model_len,
            activity=self._router.core.activity(),
        )

    async def check_health(self) -> None:
        """Called by Serve; three failures in a row restart the replica.

        Raises:
            EngineDeadError: the engine or its actor is gone, or there is work but the steps
                have stood still for `stall_timeout_s`.
        """
        if self._router.error is not None:
            self._exit_soon()
            raise self._router.error
        stalled_s = self._router.stalled_s()
        if stalled_s > self._settings.replicas.stall_timeout_s:
            raise EngineDeadError(
                f"no step has ended for {stalled_s:.0f} s although there is work; the limit is "
                f"stall_timeout_s {self._settings.replicas.stall_timeout_s:g}"
            )
        try:
            await _answer(self._actor.ping.remote())
        except EngineDeadError as error:
            self._router.fail(error)
            self._exit_soon()
            raise

    async def __del__(self) -> None:
        """Called by Serve once the replica's requests have ended, or their time is up."""
        router: BatchRouter | None = getattr(self, "_router", None)
        if router is not None:
            router.close()
            await self._channel.close()
            try:
                await asyncio.wait_for(_answer(self._actor.close.remote()), timeout=5.0)
            except (EngineDeadError, asyncio.TimeoutError) as error:
                logger.warning("the actor didn't close by itself: %s", error)

    async def _prepare(self, requests: list[EngineRequest]) -> None:
        """Has the actor compile grammars, so that no step has to wait for one."""
        outputs = [r.sampling.structured for r in requests if r.sampling.structured is not None]
        for structured in dict.fromkeys(outputs):
            await _answer(self._actor.prepare_grammar.remote(structured))
        if outputs:
            self._check_ready()  # the engine may have crashed meanwhile

    def _check_ready(self) -> None:
        if self._router.error is not None:
            self._exit_soon()
            raise EngineNotReadyError(f"this replica is shutting down: {self._router.error}")

    def _exit_soon(self) -> None:
        if self._exit_task is None:
            self._exit_task = asyncio.create_task(self._exit(), name="exit")

    async def _exit(self) -> None:
        # Streams first, so that their readers get our error; then the process, because Serve
        # notices a dead process at once, and failing health checks only after three of them.
        for _ in range(20):
            await asyncio.sleep(0.05)
            if self._num_streams == 0:
                break
        logger.error("this replica ends because its engine is dead: %s", self._router.error)
        ray.kill(ray.get_runtime_context().current_actor)


def _create_actor(settings: AppSettings) -> Any:
    replicas = settings.replicas
    resources = dict(replicas.actor_resources)
    if replicas.actor_num_npus:
        resources["NPU"] = float(replicas.actor_num_npus)
    group = ray.util.get_current_placement_group()
    if group is None:
        raise ConfigError(
            "the replica has no placement group to put its actor in; deploy it with build_app"
        )
    return RemoteNpuActor.options(
        num_cpus=replicas.actor_num_cpus,
        resources=resources,
        scheduling_strategy=PlacementGroupSchedulingStrategy(
            placement_group=group, placement_group_bundle_index=ACTOR_BUNDLE
        ),
    ).remote(settings.model, settings.engine.to_config(), settings.runner_factory)


async def _answer(reference: Any) -> Any:
    """The actor's answer, or its error as we raise it ourselves.

    Serve takes an ActorDiedError that leaves a replica for the replica's own crash, so the loss of
    the actor is raised as an error of ours.

    Raises:
        EngineDeadError: the actor is gone.
        Qwen3A8W8Error: what the actor raised.
    """
    try:
        return await reference
    except RayError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, Exception) and not isinstance(cause, RayError):
            raise cause from None
        logger.error("the actor is gone: %s", error)
        raise EngineDeadError(f"the actor is gone: {type(error).__name__}") from None
