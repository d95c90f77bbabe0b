"""Refuses calls that the op's document forbids, whether or not the real op would notice."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from torch_npu._emulation import formats


class ContractError(RuntimeError):
    """A call that the op's document forbids."""


class OpContract:
    """Checks of one op; messages begin with its name.

    Args:
        op: the op's name.
    """

    def __init__(self, op: str) -> None:
        self.op = op

    def require(self, is_met: object, message: str) -> None:
        """Refuses the call unless a condition is met."""
        if not is_met:
            raise ContractError(f"{self.op}: {message}")

    def dtype(self, name: str, tensor: Tensor, allowed: Iterable[torch.dtype]) -> None:
        """The tensor has one of some dtypes."""
        allowed = tuple(allowed)
        self.require(
            tensor.dtype in allowed, f"{name} is {tensor.dtype}, but {allowed} are supported"
        )

    def shape(self, name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
        """The tensor has exactly a shape."""
        self.require(
            tuple(tensor.shape) == shape, f"{name} has shape {tuple(tensor.shape)}, not {shape}"
        )

    def contiguous(self, /, **tensors: Tensor) -> None:
        """The tensors are contiguous."""
        for name, tensor in tensors.items():
            self.require(tensor.is_contiguous(), f"{name} is not contiguous")

    def not_empty(self, /, **tensors: Tensor) -> None:
        """The tensors have elements."""
        for name, tensor in tensors.items():
            self.require(tensor.numel() > 0, f"{name} is empty")

    def plain(self, /, **tensors: Tensor | None) -> None:
        """The tensors are in format ND: a cast weight would be read as garbage."""
        for name, tensor in tensors.items():
            if tensor is not None:
                self.require(
                    formats.format_of(tensor) == formats.ND,
                    f"{name} is in format {formats.format_of(tensor)}, not ND",
                )
