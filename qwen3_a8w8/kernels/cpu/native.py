"""The native module, and how long its objects live.

Runtimes, programs and packed weights are native objects. Each is held by one `NativeHandle`
and by nothing else; whoever uses it asks the handle every time. So closing a backend frees
all of its native objects at once, even where a traceback, a reference cycle or the frame of a
daemon thread still refers to the Python objects around them. Backends that are open when the
process ends are closed by `atexit`: the interpreter never frees what the frames of daemon
threads refer to.

Native objects refer to no Python objects, so they can't be part of reference cycles.
"""

from __future__ import annotations

import atexit
import importlib
import time
from typing import Any
from weakref import WeakSet

from qwen3_a8w8.errors import KernelUnavailableError

_EXIT_WAIT_S = 1.0


def load_native() -> Any:
    """The compiled module.

    Raises:
        KernelUnavailableError: it isn't built.
    """
    try:
        return importlib.import_module("qwen3_a8w8.kernels.cpu._native")
    except ImportError as error:
        raise KernelUnavailableError(
            f"the native CPU kernels can't be loaded ({error}); build them with "
            "`pip install -e . --no-build-isolation` (needs a C++17 compiler such as g++)"
        ) from error


class NativeHandle:
    """Holds one native object until it is released."""

    __slots__ = ("__weakref__", "_object")

    def __init__(self, native_object: Any) -> None:
        self._object = native_object

    @property
    def is_released(self) -> bool:
        """Whether the object is gone."""
        return self._object is None

    def get(self) -> Any:
        """The object, for a call that follows at once: nothing else may keep it.

        Raises:
            KernelUnavailableError: the backend is closed.
        """
        if self._object is None:
            raise KernelUnavailableError("this CPU backend is closed; make another one")
        return self._object

    def release(self) -> None:
        """Lets go of the object; may be called again."""
        self._object = None


class NativeObjects:
    """The native objects of one backend.

    Args:
        native: the compiled module.
        runtime: its threads and instruction path.

    Attributes:
        native: the compiled module.
        runtime: handle of the runtime.
    """

    def __init__(self, native: Any, runtime: Any) -> None:
        self.native = native
        self.runtime = NativeHandle(runtime)
        self._handles: WeakSet[NativeHandle] = WeakSet()
        _open.add(self)

    def add(self, native_object: Any) -> NativeHandle:
        """Takes a program or packed weights, which live no longer than the backend is open."""
        handle = NativeHandle(native_object)
        self._handles.add(handle)
        return handle

    def close(self) -> None:
        """Waits for a dispatch under way, joins the threads, frees everything. Idempotent."""
        if self.runtime.is_released:
            return
        # First, and by itself: afterwards no native call reads programs or weights any more.
        self.runtime.get().close()
        self.runtime.release()
        for handle in tuple(self._handles):
            handle.release()
        _open.discard(self)


_open: WeakSet[NativeObjects] = WeakSet()


@atexit.register
def _close_all() -> None:
    natives = {id(objects.native): objects.native for objects in _open}.values()
    for objects in tuple(_open):
        objects.close()
    # A daemon thread inside a native call keeps what the call was given until it returns to Python,
    # which it can do now but not while the interpreter is torn down.
    deadline = time.monotonic() + _EXIT_WAIT_S
    for native in natives:
        while native.num_live_objects() > 0 and time.monotonic() < deadline:
            time.sleep(0.001)
