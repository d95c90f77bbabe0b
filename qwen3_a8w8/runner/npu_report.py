"""The NPU with its kernels tried out, for `doctor`; runs as a child of it, see `npu/look.py`."""

from __future__ import annotations

from qwen3_a8w8.errors import KernelUnavailableError
from qwen3_a8w8.kernels.npu.look import answer
from qwen3_a8w8.kernels.select import select_backend
from qwen3_a8w8.runner.self_check import self_check


def main() -> None:
    """Answers with the backend's description after the start-up check."""
    try:
        backend = select_backend("npu", None)
        self_check(backend)
    except KernelUnavailableError as error:
        answer({"error": str(error)})
        return
    answer(backend.describe())
    backend.close()


if __name__ == "__main__":
    main()
