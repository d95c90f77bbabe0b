"""Error codes that the wheel's metas append to their messages."""

from __future__ import annotations

import enum


class ErrCode(enum.IntEnum):
    """Kinds of errors, as torch_npu numbers them."""

    PARAM = 1
    TYPE = 2
    VALUE = 3
    PTR = 4
    INTERNAL = 5
    MEMORY = 6
    NOT_SUPPORT = 7
    NOT_FOUND = 8
    UNAVAIL = 9


def ops_error(code: ErrCode) -> str:
    """The suffix of a message of an op."""
    return f"\n[ERROR] ERR0100{code} OPS {code.name}"


def pta_error(code: ErrCode) -> str:
    """The suffix of a message of the framework."""
    return f"\n[ERROR] ERR0000{code} PTA {code.name}"
