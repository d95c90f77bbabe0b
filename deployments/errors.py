"""Exceptions between the deployment's processes; clients never see them as such.

What clients see is decided in `http_errors.py`.
"""

from __future__ import annotations

from qwen3_a8w8.errors import EngineDeadError


class EngineNotReadyError(EngineDeadError):
    """The replica refused a request before anything was begun; another one may take it."""
