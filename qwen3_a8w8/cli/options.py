"""Options that several commands share: the model, how to run it, how to sample."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from qwen3_a8w8.engine.sampling_params import SamplingParams

Model = Annotated[
    str, typer.Option("--model", "-m", help="Checkpoint directory, 'demo', or hub id.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, npu or cuda.")]
NumThreads = Annotated[
    int | None, typer.Option(help="CPU threads; default: the cores this process may use.")
]
MaxModelLen = Annotated[
    int | None, typer.Option(help="Longest prompt plus output in tokens; default: the model's own.")
]
NumKvBlocks = Annotated[
    int | None, typer.Option(help="KV blocks, scratch block included; default: from free memory.")
]
Enable = Annotated[
    list[str] | None, typer.Option(help="Experimental flag to switch on; repeatable.")
]
MaxTokens = Annotated[int, typer.Option(help="Most tokens to generate.")]
Temperature = Annotated[
    float | None, typer.Option(help="0 is greedy; default: the checkpoint's own.")
]
TopP = Annotated[float | None, typer.Option(help="Nucleus sampling; default: the checkpoint's.")]
TopK = Annotated[int | None, typer.Option(help="Keep k tokens; default: the checkpoint's.")]
Seed = Annotated[int | None, typer.Option(help="Fixes the answer.")]
Thinking = Annotated[
    bool, typer.Option("--thinking/--no-thinking", help="Let the model think before it answers.")
]


def engine_settings(
    device: str,
    num_threads: int | None,
    max_model_len: int | None,
    num_kv_blocks: int | None,
    enable: list[str] | None = None,
) -> dict[str, Any]:
    """Settings for `LLM` from the options above."""
    return {
        "device": device,
        "num_threads": num_threads,
        "max_model_len": max_model_len,
        "num_kv_blocks": num_kv_blocks,
        "enable": tuple(enable or ()),
    }


def sampling_from(
    defaults: SamplingParams,
    *,
    max_tokens: int,
    temperature: float | None,
    top_p: float | None,
    top_k: int | None,
    seed: int | None,
) -> SamplingParams:
    """The checkpoint's sampling with what the user set explicitly.

    Raises:
        InvalidRequestError: a value is out of range.
    """
    explicit = {"temperature": temperature, "top_p": top_p, "top_k": top_k}
    given: dict[str, Any] = {name: value for name, value in explicit.items() if value is not None}
    return replace(defaults, max_tokens=max_tokens, seed=seed, **given)
