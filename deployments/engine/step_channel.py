"""Plans down and results up between a batch router and the actor beside it, over a local socket.

A call of a Ray actor costs a millisecond or more there and back, a small model's step less;
this costs a tenth of it. Frames are a length (4 bytes, big-endian) and a message: a pickle of
plain columns, without what the other end knows. Results come in the order of the plans. Both
ends are on one node, because the replica's placement group is packed; the socket lies in a
directory that only this user can enter.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pickle
import shutil
import socket
import struct
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any, cast

from qwen3_a8w8.engine.plan import DecodeBatch, DecodeRow, SampledToken, StepPlan, StepResult
from qwen3_a8w8.errors import EngineDeadError

_LENGTH = struct.Struct(">I")

OnAnswer = Callable[[StepResult | Exception], None]
"""Takes the answer to a plan: its result, or what was raised in its place."""

logger = logging.getLogger(__name__)


def _frame(message: bytes) -> bytes:
    return _LENGTH.pack(len(message)) + message


class StepServer:
    """The actor's end: one connection, plans executed one by one on a thread of their own.

    While a step runs the next plan is taken in, on another thread.

    Attributes:
        path: of the socket.
    """

    def __init__(self, execute: Callable[[StepPlan], StepResult]) -> None:
        """Listens.

        Args:
            execute: runs a plan; what it raises is sent in place of the result.
        """
        self._execute = execute
        self._directory = Path(tempfile.mkdtemp(prefix="qwen3-a8w8-"))
        self.path = str(self._directory / "steps")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen(1)
        self._plans: SimpleQueue[StepPlan | None] = SimpleQueue()
        threading.Thread(target=self._receive, name="plans", daemon=True).start()

    def close(self) -> None:
        """Takes no connection any more. Idempotent."""
        self._listener.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _receive(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # closed before anybody came
        self.close()
        threading.Thread(target=self._run, args=(connection,), name="steps", daemon=True).start()
        decoder = PlanDecoder()
        try:
            with connection.makefile("rb") as stream:
                while header := stream.read(_LENGTH.size):
                    self._plans.put(decoder.decode(stream.read(_LENGTH.unpack(header)[0])))
        except (OSError, EOFError, struct.error, pickle.UnpicklingError) as error:
            logger.warning("the batch router's end of the step channel is lost: %s", error)
        finally:
            self._plans.put(None)

    def _run(self, connection: socket.socket) -> None:
        try:
            while (plan := self._plans.get()) is not None:
                answer: StepResult | Exception
                try:
                    answer = self._execute(plan)
                except Exception as error:
                    answer = error
                connection.sendall(_frame(encode_answer(answer)))
        except OSError as error:
            logger.warning("the batch router's end of the step channel is lost: %s", error)
        except BaseException:
            logger.exception("the step channel ends: a plan can't be answered")
        finally:
            # Closing alone wouldn't end the connection while the other thread reads from it.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


class StepChannel(asyncio.Protocol):
    """The batch router's end; belongs to one event loop.

    Keeps nothing of the plans: answers come in the order of the plans, to `on_answer`.
    """

    def __init__(self) -> None:
        self._encoder = PlanEncoder()
        self._transport: asyncio.Transport
        self._received = bytearray()
        self._on_answer: OnAnswer | None = None
        self._error: EngineDeadError | None = None
        self._is_over = asyncio.Event()

    @classmethod
    async def connect(cls, path: str) -> StepChannel:
        """Connects to a `StepServer`.

        Raises:
            EngineDeadError: nothing listens there.
        """
        try:
            _, channel = await asyncio.get_running_loop().create_unix_connection(cls, path)
        except OSError as error:
            raise EngineDeadError(f"the actor's step channel can't be reached: {error}") from error
        return channel

    def start(self, on_answer: OnAnswer) -> None:
        """Begins to deliver answers.

        Args:
            on_answer: called with each plan's result, or with what the actor raised in its place;
                at the end once with an EngineDeadError, unless the channel was closed.
        """
        self._on_answer = on_answer
        if self._error is not None:
            on_answer(self._error)

    def send(self, plan: StepPlan) -> None:
        """Sends a plan; does nothing once the channel has ended."""
        if self._error is None:
            self._transport.write(_frame(self._encoder.encode(plan)))

    async def close(self) -> None:
        """Ends the connection; no more answers come. Idempotent."""
        self._on_answer = None
        self._error = self._error or EngineDeadError("the step channel has been closed")
        self._transport.abort()
        await self.wait_closed()

    async def wait_closed(self) -> None:
        """Waits until the connection has ended, from whichever end."""
        await self._is_over.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are of no such class

    def data_received(self, data: bytes) -> None:
        """Called by the event loop with some of the stream."""
        self._received += data
        while len(self._received) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._received)[0]
            if len(self._received) < end:
                return
            message = bytes(self._received[_LENGTH.size : end])
            del self._received[:end]
            if self._on_answer is not None:
                self._on_answer(decode_answer(message))

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop, also after an exception in `data_received`."""
        if self._error is None:
            logger.error("the step channel has ended: %s", exc or "end of stream")
            self._error = EngineDeadError("the actor is gone: its step channel has ended")
            if self._on_answer is not None:
                self._on_answer(self._error)
        self._is_over.set()


Table = tuple[int, ...]


class PlanEncoder:
    """The sender's end of one connection.

    A decode row's table of blocks is as long as its sequence, but from step to step it mostly
    stays what it was. So only its new end is sent, and an unchanged table is the same object in
    the receiver's plans, which it can compare by identity. This needs both ends to see the same
    plans in the same order, and makes a long context cost no more than a short one.
    """

    def __init__(self) -> None:
        self._tables: dict[int, Table] = {}  # of the live sequences that have decoded

    def encode(self, plan: StepPlan) -> bytes:
        """A plan as bytes."""
        tables = self._tables
        for seq_id in plan.release:
            tables.pop(seq_id, None)
        rest = (plan.release, plan.start, plan.prefill, plan.prefill_layers)
        if plan.decode is None:
            return _dump((plan.step_id, rest, None))
        tails: dict[int, tuple[int, Table]] = {}
        for row in plan.decode.rows:
            table, known = row.block_ids, tables.get(row.seq_id, ())
            if table is not known:
                num_kept = len(known) if table[: len(known)] == known else 0
                tails[row.seq_id] = (num_kept, table[num_kept:])
                tables[row.seq_id] = table
        seq_ids, positions, _, drafts = zip(*plan.decode.rows, strict=True)
        return _dump(
            (plan.step_id, rest, (plan.decode.batch_size, seq_ids, positions, drafts, tails))
        )


class PlanDecoder:
    """The receiver's end of one connection."""

    def __init__(self) -> None:
        self._tables: dict[int, Table] = {}

    def decode(self, message: bytes) -> StepPlan:
        """The plan that was sent."""
        step_id, (release, start, prefill, layers), batch = pickle.loads(message)
        tables = self._tables
        for seq_id in release:
            tables.pop(seq_id, None)
        decode = None
        if batch is not None:
            batch_size, seq_ids, positions, drafts, tails = batch
            for seq_id, (num_kept, tail) in tails.items():
                tables[seq_id] = (*tables.get(seq_id, ())[:num_kept], *tail)
            block_ids = [tables[seq_id] for seq_id in seq_ids]
            rows = zip(seq_ids, positions, block_ids, drafts, strict=True)
            decode = DecodeBatch(batch_size, tuple(map(DecodeRow._make, rows)))
        return StepPlan(step_id, release, start, prefill, layers, decode)


def encode_answer(answer: StepResult | Exception) -> bytes:
    """A result, or what was raised in its place, as bytes."""
    if isinstance(answer, Exception):
        return _dump(answer)
    columns = tuple(zip(*answer.sampled, strict=True))
    times = (answer.device_time_s, answer.prefill_time_s, answer.idle_s)
    return _dump((answer.step_id, columns, times, answer.prompt_tokens))


def decode_answer(message: bytes) -> StepResult | Exception:
    """What was sent."""
    answer = pickle.loads(message)
    if isinstance(answer, Exception):
        return answer
    step_id, columns, (device_s, prefill_s, idle_s), prompt_tokens = answer
    sampled = tuple(map(SampledToken._make, zip(*columns, strict=True)))
    return StepResult(step_id, sampled, device_s, prefill_s, idle_s, prompt_tokens)


def _dump(message: Any) -> bytes:
    return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
