"""Base class that makes an object with `close` a context manager."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TypeVar

_T = TypeVar("_T", bound="SelfClosing")


class SelfClosing(ABC):
    """A context manager that closes itself, like `contextlib.closing`."""

    @abstractmethod
    def close(self) -> None:
        """Frees all resources. Idempotent."""

    def __enter__(self: _T) -> _T:
        """Returns itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Closes the object."""
        self.close()
