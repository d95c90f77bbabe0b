"""Which form of each kernel runs: the fastest whose rows don't depend on the batch.

Every kernel here treats rows one by one, but an op of the device may add up a row in another order
when there are other rows beside it. `invariance.py` finds out; this module keeps what it chose.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

PIECE_ROWS = 16
"""Rows of a call in form "sixteen"; the largest decode batch."""

FORMS: dict[str, tuple[str, ...]] = {
    "add_rms_norm_quant": ("fused", "split"),
    "rms_norm": ("op", "sixteen"),
    "dynamic_quant": ("op", "sixteen"),
    "quant_matmul": ("op", "sixteen"),
    "matmul": ("op", "sixteen"),
    "swiglu": ("op", "sixteen"),
    "rotary": ("op", "plain"),
    "attention": ("op", "sixteen"),
    "prefill_attention": ("tnd", "rows"),
}
"""The forms of each kernel, fastest first. "sixteen": calls of 16 rows each, padded with zeros.
"split": sum, norm and quantisation by ops of their own. "plain": elementwise ops. "rows": each
token of a prompt is a query of its own, as in decode."""


class Forms:
    """The form in use of each kernel.

    Attributes:
        varying: kernels whose slowest form varies with the batch, too.
    """

    def __init__(self) -> None:
        self._index = dict.fromkeys(FORMS, 0)
        self._reasons: dict[str, str] = {}
        self.varying: set[str] = set()

    def __getitem__(self, kernel: str) -> str:
        return FORMS[kernel][self._index[kernel]]

    def take_next(self, kernel: str, reason: str) -> bool:
        """Takes the next slower form; returns False if there is none.

        Args:
            kernel: a key of `FORMS`.
            reason: why the present one isn't used, for reports.
        """
        if self._index[kernel] + 1 == len(FORMS[kernel]):
            return False
        self._reasons[kernel] = f"{self[kernel]} {reason}"
        self._index[kernel] += 1
        return True

    def take_slowest(self, kernel: str, reason: str) -> None:
        """Takes the last form of a kernel."""
        while self.take_next(kernel, reason):
            pass

    def describe(self) -> str:
        """Kernels that don't run in their fastest form, with reasons; "fastest" if all do."""
        slower = [
            f"{kernel}: {self[kernel]} ({self._reasons[kernel]})"
            for kernel, index in self._index.items()
            if index
        ]
        return "; ".join(slower) or "fastest"


Rows = Tensor | tuple[Tensor, ...]


def in_pieces(call: Callable[..., Rows], *operands: Tensor) -> Rows:
    """Calls a function of rows on `PIECE_ROWS` of them at a time.

    Args:
        call: gets as many rows of each operand, returns one tensor of rows or several.
        operands: [T, ...] each; missing rows of the last piece are zeros.
    """
    num_rows = operands[0].shape[0]
    pieces: list[tuple[Tensor, ...]] = []
    is_single = False
    for start in range(0, num_rows, PIECE_ROWS):
        count = min(PIECE_ROWS, num_rows - start)
        result = call(*(_padded(each[start : start + count]) for each in operands))
        is_single = isinstance(result, Tensor)
        parts = (result,) if isinstance(result, Tensor) else result
        pieces.append(tuple(part[:count] for part in parts))
    joined = tuple(torch.cat(parts).contiguous() for parts in zip(*pieces, strict=True))
    return joined[0] if is_single else joined


def _padded(rows: Tensor) -> Tensor:
    if rows.shape[0] == PIECE_ROWS:
        return rows.contiguous()
    padded = rows.new_zeros((PIECE_ROWS, *rows.shape[1:]))
    padded[: rows.shape[0]] = rows
    return padded
