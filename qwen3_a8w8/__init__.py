"""Serve Qwen3 dense models with int8 weights and int8 activations.

In-process use is `LLM` and `SamplingParams`; the served application lives in the
sibling package `deployments`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.version import __version__

if TYPE_CHECKING:
    from qwen3_a8w8.llm import LLM

__all__ = ["LLM", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    # LLM imports torch; the batch router and the ingress import this package without it.
    if name == "LLM":
        from qwen3_a8w8.llm import LLM

        return LLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
