"""The seam to torch_npu: one object through which everything else reaches the device.

torch_npu is imported when a device is opened, which happens in the process that owns it; others ask
by `look.py`. Every other module of this package asks `NpuDevice` for what depends on hardware, so
that a module named `torch_npu` on the path, such as the emulation of `tools/`, is all that a test
needs.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch

from qwen3_a8w8.errors import KernelUnavailableError
from qwen3_a8w8.kernels.npu.look import check_installed

FRACTAL_NZ = 29
"""Format number of weights that matrix products read fastest.  Source: torch_npu.Format."""


def _import_torch_npu() -> ModuleType:
    check_installed()
    try:
        return importlib.import_module("torch_npu")
    except (ImportError, OSError, RuntimeError) as error:
        raise KernelUnavailableError(
            f"device 'npu': torch_npu can't be imported ({_first_line(error)}); source CANN's "
            "set_env.sh in the process that starts Ray, or use device='cpu'"
        ) from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


@contextlib.contextmanager
def device_errors(doing: str) -> Iterator[None]:
    """Turns torch_npu's errors, of a lost device or of memory that is full, into one of ours.

    Args:
        doing: what fails, for the message.

    Raises:
        KernelUnavailableError: with the device's words.
    """
    try:
        yield
    except RuntimeError as error:
        raise KernelUnavailableError(
            f"device 'npu' failed while {doing}: {' '.join(str(error).split())}; look into the "
            "device's log, and start the engine again"
        ) from error


class NpuDevice:
    """Device 0 of those that ASCEND_RT_VISIBLE_DEVICES leaves to this process.

    Attributes:
        torch_npu: the module; its ops are called by keyword.
        torch_device: device of tensors, as `Tensor.to` takes it.
    """

    def __init__(self) -> None:
        """Opens the device.

        Raises:
            KernelUnavailableError: no torch_npu, no device, or another process holds it.
        """
        self.torch_npu = _import_torch_npu()
        self._npu = self.torch_npu.npu
        # Only an emulation has the name: its tensors live elsewhere.
        self.torch_device: str = getattr(self.torch_npu, "EMULATED_TORCH_DEVICE", "npu")
        count = self.device_count()
        if count == 0:
            visible = os.environ.get("ASCEND_RT_VISIBLE_DEVICES")
            raise KernelUnavailableError(
                "device 'npu': this process sees 0 NPUs (ASCEND_RT_VISIBLE_DEVICES is "
                f"{'not set' if visible is None else repr(visible)}); check `npu-smi info` and the "
                "variable, or use device='cpu'"
            )
        try:
            self._npu.set_device(0)
        except RuntimeError as error:
            raise KernelUnavailableError(
                f"device 'npu': NPU 0 of {count} can't be opened ({' '.join(str(error).split())}); "
                "one engine owns one NPU: end the other process or choose another NPU with "
                "ASCEND_RT_VISIBLE_DEVICES"
            ) from error

    def device_count(self) -> int:
        """Number of devices this process may see."""
        return int(self._npu.device_count())

    @property
    def is_emulated(self) -> bool:
        """Whether `torch_npu` is a stand-in without hardware."""
        return hasattr(self.torch_npu, "EMULATED_TORCH_DEVICE")

    @property
    def version(self) -> str:
        """Version of torch_npu."""
        return str(self.torch_npu.__version__)

    @property
    def cann_version(self) -> str:
        """Version of CANN; empty if none is found."""
        utils = importlib.import_module("torch_npu.npu.utils")
        return str(utils.get_cann_version(module="CANN") or "")

    @property
    def soc_version(self) -> int:
        """Number of the chip."""
        utils = importlib.import_module("torch_npu.npu.utils")
        return int(utils.get_soc_version())

    @property
    def name(self) -> str:
        """The chip's name, such as "Ascend910B3"."""
        return str(self._npu.get_device_name(0))

    def memory_bytes(self) -> tuple[int, int]:
        """(free, total) bytes of the device."""
        free, total = self._npu.mem_get_info(0)
        return int(free), int(total)

    def synchronize(self) -> None:
        """Waits for all work; errors of earlier calls arrive here."""
        self._npu.synchronize()

    def empty_cache(self) -> None:
        """Gives unused memory of torch's allocator back to the device."""
        self._npu.empty_cache()

    def schema(self, op: str) -> torch._C.FunctionSchema | None:
        """The declaration of op `npu::<op>`, or None if this torch_npu has no such op."""
        packet = getattr(torch.ops.npu, op, None)
        return None if packet is None else packet.default._schema

    def to_nz(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in format FRACTAL_NZ, which must be used whole: a slice of it is refused."""
        result: torch.Tensor = self.torch_npu.npu_format_cast(tensor, FRACTAL_NZ)
        return result

    def new_graph(self) -> Any:
        """An empty graph.

        Raises:
            RuntimeError: this CANN can't capture.
        """
        return self._npu.NPUGraph()

    def capture(self, graph: Any) -> Any:
        """A context in which ops are recorded into `graph`, with lengths that `update` replaces."""
        return self._npu.graph(graph, auto_dispatch_capture=True)

    def update(self, graph: Any, host_arguments: Sequence[Mapping[str, Any]]) -> None:
        """Sets the attention ops' host arguments of the next replay; each replay needs this.

        Args:
            graph: captured by `capture`.
            host_arguments: one mapping for all ops, or one per op in the order of the capture;
                only arguments that were passed by keyword then can be replaced.
        """
        graph.update(cpu_update_input=[dict(each) for each in host_arguments])

    def replay(self, graph: Any) -> None:
        """Starts the recorded work."""
        graph.replay()
