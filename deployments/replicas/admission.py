"""Whether the engines have room, decided in the ingress before any work for a request is done.

Without this, a request that meets full queues would be tokenised, sent to a replica and be
refused there, behind all the requests whose answers the same ingress is writing. So an ingress
counts the places that its own requests hold. As long as they are fewer than the engines have, a
request goes on at once; otherwise all that are in doubt ask the replicas together, with one
message. What is refused has been refused by the replicas' own numbers, and these were asked for
after the request had come: no answer is used twice, so none can be stale.

Where the replicas don't say (one doesn't answer, none is running), a request goes on, and the
replica that gets it decides; likewise where several ingress processes have filled the queues
together, until a replica's first refusal. Doesn't import Ray.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

from qwen3_a8w8.engine.admission.queue_limit import Room
from qwen3_a8w8.errors import CapacityError, EngineDeadError

Ask = Callable[[], Awaitable[Sequence[Room]]]
"""The room of all running replicas; raises EngineDeadError where one of them doesn't say."""


PAUSE_S = 0.001
"""Seconds per replica between two questions: about what it costs an ingress to ask one."""


class Places:
    """Places that the sequences of one request hold before a replica has accepted them."""

    def __init__(self, admission: Admission, count: int) -> None:
        self._admission = admission
        self._num_left = count
        admission.num_held += count
        admission.num_unanswered += count

    def take(self, count: int) -> None:
        """Hands places over to sequences that are sent now; what is missing is added."""
        missing = count - min(count, self._num_left)
        self._num_left -= count - missing
        self._admission.num_held += missing
        self._admission.num_unanswered += missing

    def close(self) -> None:
        """Gives back what no sequence has taken; may be called again."""
        self._admission.num_held -= self._num_left
        self._admission.num_unanswered -= self._num_left
        self._num_left = 0


class Admission:
    """The places of one ingress process; belongs to one event loop.

    Attributes:
        num_held: places of requests that have been let in here and haven't ended.
        num_unanswered: those of them that no replica has accepted yet, as far as is known.
    """

    def __init__(self, ask: Ask) -> None:
        self.num_held = 0
        self.num_unanswered = 0
        self._ask = ask
        self._limit: int | None = None  # of all replicas together, when last asked
        self._has_refused = False
        self._waiting: list[tuple[int, asyncio.Future[Places]]] = []
        self._questions: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def places(self, count: int) -> AsyncIterator[Places]:
        """Places for `count` sequences; what no sequence has taken at the end is given back.

        Raises:
            CapacityError: all replicas are full.
        """
        places = await self._enter(count)
        try:
            yield places
        finally:
            places.close()

    @contextlib.contextmanager
    def counted(self, count: int, places: Places | None) -> Iterator[Callable[[], None]]:
        """Counts sequences from here, where they are sent, to their end.

        Args:
            count: of the sequences.
            places: theirs; None: nobody has asked whether there is room.

        Yields:
            To be called once a replica has accepted them, so that its numbers include them; may
            be called again.
        """
        (places or Places(self, 0)).take(count)
        num_unanswered = count

        def accepted() -> None:
            nonlocal num_unanswered
            self.num_unanswered -= num_unanswered
            num_unanswered = 0

        try:
            yield accepted
        except CapacityError:
            self._has_refused = True  # from now on requests ask first
            raise
        finally:
            accepted()
            self.num_held -= count

    async def _enter(self, count: int) -> Places:
        is_sure = self._limit is not None and self.num_held + count <= self._limit
        if is_sure and not self._has_refused and not self._waiting:
            return Places(self, count)
        answer: asyncio.Future[Places] = asyncio.get_running_loop().create_future()
        self._waiting.append((count, answer))
        if self._questions is None:
            self._questions = asyncio.create_task(self._ask_for_all(), name="room")
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                answer.result().close()  # let in when its client had just gone
            raise

    async def _ask_for_all(self) -> None:
        """Asks as long as requests wait, each time for all that have come before the question."""
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, []
                try:
                    rooms: Sequence[Room] = await self._ask()
                except EngineDeadError:
                    rooms = ()
                except Exception as error:
                    _fail(waiting, error)
                    continue
                self._decide(waiting, rooms)
                await asyncio.sleep(len(rooms) * PAUSE_S)
        finally:
            self._questions = None

    def _decide(
        self, waiting: list[tuple[int, asyncio.Future[Places]]], rooms: Sequence[Room]
    ) -> None:
        self._limit = sum(room.limit for room in rooms) if rooms else None
        refused = False
        for count, answer in waiting:
            if answer.done():  # its client has gone
                continue
            if self._limit is None or count <= self._room(rooms):
                answer.set_result(Places(self, count))
            else:
                refused = True
                answer.set_exception(_refusal(count, rooms))
        self._has_refused = refused

    def _room(self, rooms: Sequence[Room]) -> int:
        """Sequences that fit now, never too few.

        The replicas' numbers may include what is on its way to them or not. So two numbers may
        be too low: the one that takes all of it from their room, and, while sequences run on
        replicas that are being replaced, the one that takes all of ours from their limit.
        """
        room = sum(room.free for room in rooms)
        limit = sum(room.limit for room in rooms)
        return max(room - self.num_unanswered, min(room, limit - self.num_held))


def _fail(waiting: list[tuple[int, asyncio.Future[Places]]], error: Exception) -> None:
    for _, answer in waiting:
        if not answer.done():
            answer.set_exception(error)


def _refusal(count: int, rooms: Sequence[Room]) -> CapacityError:
    limit = sum(room.limit for room in rooms)
    return CapacityError(
        f"the engines are full: {len(rooms)} of them take in {limit} sequences at a time "
        f"(max_running_requests + max_queued_requests each), and {count} more don't fit; try "
        "again later or raise the limits",
        retry_after_s=min(room.retry_after_s for room in rooms),
    )
