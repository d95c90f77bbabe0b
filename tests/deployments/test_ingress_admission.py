"""Whether there is room, as the ingress decides it; the replicas' answers come when a test says."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from deployments.replicas.admission import Admission
from qwen3_a8w8.engine.admission.queue_limit import Room
from qwen3_a8w8.errors import CapacityError, EngineNotReadyError


class Replicas:
    """Answers questions about their room, the oldest first."""

    def __init__(self):
        self.questions = []
        self.num_questions = 0
        self.admission = Admission(self.ask)

    def ask(self):
        self.num_questions += 1
        self.questions.append(asyncio.get_running_loop().create_future())
        return self.questions[-1]

    async def answer(self, *rooms, error=None):
        while not self.questions:
            await asyncio.sleep(0)
        question = self.questions.pop(0)
        if error:
            question.set_exception(error)
        else:
            question.set_result(list(rooms))
        for _ in range(5):  # all that follows from it
            await asyncio.sleep(0)

    async def know(self, *rooms):
        """Has been asked once, by a request that has ended."""
        request = asyncio.create_task(enter(self.admission))
        await self.answer(*rooms)
        await (await request).aclose()


async def enter(admission, count=1):
    """A request that holds places until its stack is closed; its sequences are accepted."""
    stack = AsyncExitStack()
    async with admission.places(count) as places:
        accepted = stack.enter_context(admission.counted(count, places))
    accepted()
    return stack


def room(limit, free, retry_after_s=2.0):
    return Room(limit, free, retry_after_s)


@pytest.fixture
def replicas():
    return Replicas()


@pytest.fixture
def admission(replicas):
    yield replicas.admission
    assert (replicas.admission.num_held, replicas.admission.num_unanswered) == (0, 0)


async def test_nobody_is_asked_while_our_own_requests_leave_room(replicas, admission):
    await replicas.know(room(3, 3))
    requests = [await enter(admission) for _ in range(3)]
    assert replicas.num_questions == 1
    assert admission.num_held == 3
    for request in requests:
        await request.aclose()


async def test_full_replicas_refuse_with_the_earliest_time_to_come_back(replicas, admission):
    request = asyncio.create_task(enter(admission, 2))
    await replicas.answer(room(8, 0, 7.0), room(8, 1, 3.0))
    with pytest.raises(CapacityError, match="2 of them take in 16 sequences") as caught:
        await request
    assert caught.value.retry_after_s == 3.0


async def test_one_question_decides_about_all_that_came_before_it_and_no_other(replicas, admission):
    await replicas.know(room(1, 1))
    held = await enter(admission)
    first = [asyncio.create_task(enter(admission)) for _ in range(20)]
    while not replicas.questions:
        await asyncio.sleep(0)
    later = [asyncio.create_task(enter(admission)) for _ in range(20)]
    await replicas.answer(room(1, 0))
    for request in first:
        with pytest.raises(CapacityError):
            await request
    assert not any(request.done() for request in later)
    await held.aclose()  # the sequence that filled the queue has ended meanwhile
    await replicas.answer(room(1, 1))
    results = await asyncio.gather(*later, return_exceptions=True)
    assert [isinstance(result, CapacityError) for result in results] == [False] + [True] * 19
    assert replicas.num_questions == 3
    await results[0].aclose()


async def test_a_place_that_is_free_again_is_given_without_a_question(replicas, admission):
    await replicas.know(room(1, 1))
    for _ in range(3):
        held = await enter(admission)
        refused = asyncio.create_task(enter(admission))
        await replicas.answer(room(1, 0))
        with pytest.raises(CapacityError):
            await refused
        await held.aclose()
        # A refusal makes the next one ask, in case that others have filled the queue.
        again = asyncio.create_task(enter(admission))
        await replicas.answer(room(1, 1))
        await (await again).aclose()
    num_questions = replicas.num_questions
    await (await enter(admission)).aclose()
    assert replicas.num_questions == num_questions


async def test_what_is_on_its_way_to_the_replicas_takes_room(replicas, admission):
    await replicas.know(room(4, 4))
    async with admission.places(4):  # sent, but the replicas have none of them yet
        request = asyncio.create_task(enter(admission))
        await replicas.answer(room(4, 4))
        with pytest.raises(CapacityError):
            await request


async def test_what_the_replicas_have_already_does_not_take_room_twice(replicas, admission):
    await replicas.know(room(8, 8))
    async with admission.places(3):  # the replicas' number has them, their answers aren't here
        request = asyncio.create_task(enter(admission, 5))
        await asyncio.sleep(0)
        await (await request).aclose()
        admission._has_refused = True  # somebody else's requests: the replicas are to be asked
        request = asyncio.create_task(enter(admission, 5))
        await replicas.answer(room(8, 5))
        await (await request).aclose()


async def test_sequences_on_replicas_that_are_being_replaced_take_no_room(replicas, admission):
    await replicas.know(room(4, 4))
    old = await enter(admission, 4)
    request = asyncio.create_task(enter(admission, 3))
    await replicas.answer(room(4, 3))  # a new replica, with one request of another ingress
    await (await request).aclose()
    await old.aclose()


@pytest.mark.parametrize("error", [None, EngineNotReadyError("one doesn't answer")])
async def test_request_goes_on_where_the_replicas_do_not_say(replicas, admission, error):
    request = asyncio.create_task(enter(admission, 100))
    await replicas.answer(error=error)
    await (await request).aclose()


async def test_defect_in_a_question_reaches_the_requests(replicas, admission):
    request = asyncio.create_task(enter(admission))
    await replicas.answer(error=RuntimeError("a defect"))
    with pytest.raises(RuntimeError, match="a defect"):
        await request


async def test_first_refusal_of_a_replica_makes_the_next_request_ask(replicas, admission):
    await replicas.know(room(8, 8))
    with pytest.raises(CapacityError):
        with admission.counted(1, None):
            raise CapacityError("others have filled the queue")
    request = asyncio.create_task(enter(admission))
    await replicas.answer(room(8, 0))
    with pytest.raises(CapacityError):
        await request


async def test_clients_that_leave_while_they_wait_hold_nothing(replicas, admission):
    leaves_early = asyncio.create_task(enter(admission))
    leaves_late = asyncio.create_task(enter(admission))
    while not replicas.questions:
        await asyncio.sleep(0)
    leaves_early.cancel()
    replicas.questions[0].set_result([room(2, 2)])
    while admission.num_held == 0:
        await asyncio.sleep(0)
    leaves_late.cancel()  # let in, but it hasn't run since
    results = await asyncio.gather(leaves_early, leaves_late, return_exceptions=True)
    assert [type(result) for result in results] == [asyncio.CancelledError] * 2


async def test_places_that_no_sequence_takes_are_given_back(replicas, admission):
    await replicas.know(room(8, 8))
    async with admission.places(5) as places:
        with admission.counted(1, places) as accepted:
            accepted()
            assert (admission.num_held, admission.num_unanswered) == (5, 4)
        assert (admission.num_held, admission.num_unanswered) == (4, 4)
