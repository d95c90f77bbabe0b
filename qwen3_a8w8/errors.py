"""Every exception this package raises on purpose.

One tree, so that a caller can catch `Qwen3A8W8Error` and know that whatever
else arrives is a defect. This module knows nothing of HTTP: the table from
exception to status and code is `deployments/http/errors.py`.
"""

from __future__ import annotations


class Qwen3A8W8Error(Exception):
    """Base of all errors; the message gives the fact, the value, the limit and the remedy."""


class ConfigError(Qwen3A8W8Error):
    """A setting, a flag or a combination of them can't be used."""


class CheckpointError(Qwen3A8W8Error):
    """A checkpoint is missing, damaged, misshapen or of a kind that isn't supported."""


class KernelUnavailableError(Qwen3A8W8Error):
    """A device or an instruction set was asked for by name and can't run here."""


class SignatureError(Qwen3A8W8Error):
    """A callable's annotations, its dims or the arguments of one call break the contract."""


class InvalidRequestError(Qwen3A8W8Error):
    """A request can't be served as it is written.

    Attributes:
        param: name of the offending request field, or None.
        code: short machine-readable reason, or None.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions cross process boundaries; the keyword-only fields must travel along.
        return (_rebuild, (type(self), self.args[0] if self.args else "", self.param, self.code))


class ModelNotFoundError(InvalidRequestError):
    """The request names a model that isn't served here."""


class ContextLengthError(InvalidRequestError):
    """Prompt plus requested tokens don't fit the context or the KV cache."""


class UnsupportedBatchSizeError(InvalidRequestError):
    """A batch has a size that the runner doesn't decode."""


class CapacityError(Qwen3A8W8Error):
    """The server is full; the same request may succeed later.

    Attributes:
        retry_after_s: seconds after which a new attempt is sensible.
    """

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[object, ...]:
        message = self.args[0] if self.args else ""
        return (_rebuild_capacity, (type(self), message, self.retry_after_s))


class RateLimitError(CapacityError):
    """A client has reached its own limit, however busy the server is."""


class EngineDeadError(Qwen3A8W8Error):
    """The engine, its actor or its device is gone; requests in flight can't go on there.

    Attributes:
        was_computing: whether the request was in a step then, or nobody knows: its part in the
            death isn't ruled out.
    """

    def __init__(self, message: str = "", *, was_computing: bool = True) -> None:
        super().__init__(message)
        self.was_computing = was_computing

    def __reduce__(self) -> tuple[object, ...]:
        message = self.args[0] if self.args else ""
        return (_rebuild_dead, (type(self), message, self.was_computing))


class EngineNotReadyError(EngineDeadError):
    """The replica refused a request before anything was begun; another one may take it."""


class StepFailedError(Qwen3A8W8Error):
    """The runner lives but couldn't carry out a step; what it did of it isn't known."""


class RequestFailedError(Qwen3A8W8Error):
    """One request can't be computed here, and is ended so that the others go on."""


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
