"""Streams and events. Work is done at once, so that streams only order what is recorded."""

from __future__ import annotations

from types import TracebackType
from typing import Any


class Stream:
    """A queue of work; a graph is captured on the current one."""

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.device = device

    def synchronize(self) -> None:
        """Waits for the stream's work."""
        from torch_npu import npu

        npu.synchronize()

    def wait_stream(self, stream: Stream) -> None:
        """Later work waits for another stream's."""

    def wait_event(self, event: Event) -> None:
        """Later work waits for an event."""
        event.wait(self)

    def record_event(self, event: Event | None = None) -> Event:
        """Records an event on this stream."""
        event = event or Event()
        event.record(self)
        return event


class Event:
    """Marks a point in a stream."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False) -> None:
        self.is_recorded = False

    def record(self, stream: Stream | None = None) -> None:
        """Marks the stream's end as it is now."""
        self.is_recorded = True

    def wait(self, stream: Stream | None = None) -> None:
        """Later work of the stream waits for this event."""

    def query(self) -> bool:
        """Whether the work before it is done."""
        return True

    def synchronize(self) -> None:
        """Waits for the event."""

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds between two events; there is no timing here."""
        raise RuntimeError("events of the emulation have no timing")


class ExternalEvent(Event):
    """An event that a captured graph waits for and the host records at every replay."""

    def __init__(self) -> None:
        super().__init__()

    def record(self, stream: Stream | None = None) -> None:
        """Lets a waiting graph go on."""
        from torch_npu.npu import graphs

        self.is_recorded = True
        graphs.continue_pending()

    def wait(self, stream: Stream | None = None) -> None:
        """In a capture: every replay waits for the event here."""
        from torch_npu.npu import graphs

        graphs.record_wait(self)

    def reset(self, stream: Stream | None = None) -> None:
        """In a capture: every replay consumes the event here."""
        from torch_npu.npu import graphs

        if not graphs.is_current_stream_capturing():
            self.is_recorded = False


_default = Stream()
_current = _default


def current_stream(device: Any = None) -> Stream:
    """The stream that work goes to."""
    return _current


def default_stream(device: Any = None) -> Stream:
    """The stream that work goes to at the start."""
    return _default


def set_stream(stream: Stream) -> None:
    """Chooses the stream that work goes to."""
    global _current
    _current = stream


class StreamContext:
    """Chooses a stream for the time of a block."""

    def __init__(self, stream: Stream | None) -> None:
        self._stream = stream
        self._previous: Stream | None = None

    def __enter__(self) -> None:
        self._previous = _current
        if self._stream is not None:
            set_stream(self._stream)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._previous is not None
        set_stream(self._previous)


def stream(stream: Stream | None) -> StreamContext:
    """A block whose work goes to a stream."""
    return StreamContext(stream)
