"""Every exception this package raises on purpose.

One tree, so that a caller can catch `Qwen3A8W8Error`: any other exception
is a bug. This module doesn't know about HTTP: the table from
exception to status is `deployments/http/errors.py`.
"""

from __future__ import annotations


class Qwen3A8W8Error(Exception):
    """Base of all errors; the message gives the fact, the value, the limit and the remedy."""


class ConfigError(Qwen3A8W8Error):
    """A setting, a flag or a combination of them can't be used."""


class CheckpointError(Qwen3A8W8Error):
    """A checkpoint is missing, damaged, of a wrong shape or in an unsupported format."""


class KernelUnavailableError(Qwen3A8W8Error):
    """A device or an instruction set was requested by name and can't run here."""


class SignatureError(Qwen3A8W8Error):
    """A callable's annotations, its dims or the arguments of one call break the contract."""


class InvalidRequestError(Qwen3A8W8Error):
    """A request is invalid or can't be served.

    Attributes:
        param: name of the offending request field, or None.
        code: short machine-readable error code, or None.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions cross process boundaries; pickling must keep the keyword-only fields.
        return (_rebuild, (type(self), self.args[0] if self.args else "", self.param, self.code))


class ModelNotFoundError(InvalidRequestError):
    """The request names a model that this server doesn't serve."""


class ContextLengthError(InvalidRequestError):
    """Prompt plus requested tokens don't fit the context or the KV cache."""


class UnsupportedBatchSizeError(InvalidRequestError):
    """The runner has no decode callable for this batch size."""


class CapacityError(Qwen3A8W8Error):
    """The server is full; the same request may succeed later.

    Attributes:
        retry_after_s: seconds that the client should wait before it retries.
    """

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[object, ...]:
        message = self.args[0] if self.args else ""
        return (_rebuild_capacity, (type(self), message, self.retry_after_s))


class RateLimitError(CapacityError):
    """A client has reached its own limit, whatever the load of the server."""


class EngineDeadError(Qwen3A8W8Error):
    """The engine, its actor or its device has crashed; requests in flight cannot continue there.

    Attributes:
        was_computing: whether the request was, or may have been, in a step at that moment: it
            can't be ruled out as the cause of the crash.
    """

    def __init__(self, message: str = "", *, was_computing: bool = True) -> None:
        super().__init__(message)
        self.was_computing = was_computing

    def __reduce__(self) -> tuple[object, ...]:
        message = self.args[0] if self.args else ""
        return (_rebuild_dead, (type(self), message, self.was_computing))


class EngineNotReadyError(EngineDeadError):
    """The replica refused a request before it started any work; another replica may accept it."""


class StepFailedError(Qwen3A8W8Error):
    """The runner is alive but a step failed; how much of the step it executed isn't known."""


class RequestFailedError(Qwen3A8W8Error):
    """One request can't be computed; it is ended so that the others continue."""


def _rebuild(
    cls: type[InvalidRequestError], message: str, param: str | None, code: str | None
) -> InvalidRequestError:
    return cls(message, param=param, code=code)


def _rebuild_capacity(
    cls: type[CapacityError], message: str, retry_after_s: float
) -> CapacityError:
    return cls(message, retry_after_s=retry_after_s)


def _rebuild_dead(cls: type[EngineDeadError], message: str, was_computing: bool) -> EngineDeadError:
    return cls(message, was_computing=was_computing)
