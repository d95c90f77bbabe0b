"""What a class with `close` needs to be used in a `with` statement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TypeVar

_T = TypeVar("_T", bound="SelfClosing")


class SelfClosing(ABC):
    """A context manager that closes itself, as `contextlib.closing` would from outside."""

    @abstractmethod
    def close(self) -> None:
        """Gives everything back. Idempotent."""

    def __enter__(self: _T) -> _T:
        """Returns itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Closes it."""
        self.close()
