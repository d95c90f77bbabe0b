"""Versions of hardware and software."""

from __future__ import annotations

from torch_npu._emulation.options import options


def get_soc_version() -> int:
    """The number of the chip: 220 to 225 is Atlas A2, 250 to 255 Atlas A3."""
    return options.soc


def get_cann_version(module: str = "CANN") -> str:
    """The version of CANN, or "" if none is found."""
    return options.cann
