"""Options that several commands share: the model, how to run it, how to sample.

A command that takes `EngineOptions` or `SamplingOptions` is decorated with `expanded`; on the
command line their fields are options of their own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer

from qwen3_a8w8.engine.sampling_params import SamplingParams

Model = Annotated[
    str, typer.Option("--model", "-m", help="Checkpoint directory, 'demo', or hub id.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, npu or cuda.")]
NumThreads = Annotated[
    int | None, typer.Option(help="CPU threads; default: the cores this process may use.")
]
Isa = Annotated[
    str | None,
    typer.Option(help="Instruction path of the CPU kernels, e.g. avx2; default: the fastest."),
]
MaxModelLen = Annotated[
    int | None, typer.Option(help="Longest prompt plus output in tokens; default: the model's own.")
]
NumKvBlocks = Annotated[
    int | None, typer.Option(help="KV blocks, scratch block included; default: from free memory.")
]
Enable = Annotated[list[str] | None, typer.Option(help="Experimental flag to enable; repeatable.")]
UseMmap = Annotated[
    bool,
    typer.Option(
        "--mmap/--no-mmap", help="Map packed weights, or read them into this process's own memory."
    ),
]


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Engine options; names and defaults are those of `EngineConfig`."""

    device: Device = "auto"
    num_threads: NumThreads = None
    isa: Isa = None
    max_model_len: MaxModelLen = None
    num_kv_blocks: NumKvBlocks = None
    packed_cache_dir: Annotated[
        str,
        typer.Option(
            help="Directory for packed weights, reused by the next start; auto: "
            "$QWEN3_A8W8_CACHE or ~/.cache/qwen3-a8w8/packed; none: nowhere."
        ),
    ] = "auto"
    use_mmap: UseMmap = True
    enable: Enable = None

    def settings(self) -> dict[str, Any]:
        """The options as arguments of `LLM`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.packed_cache_dir == "none":
            values["packed_cache_dir"] = None
        return {**values, "enable": tuple(self.enable or ())}


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """Sampling options."""

    thinking: Annotated[
        bool,
        typer.Option("--thinking/--no-thinking", help="Let the model think before it answers."),
    ] = False
    max_tokens: Annotated[int, typer.Option(help="Most tokens to generate.")] = 512
    temperature: Annotated[
        float | None, typer.Option(help="0 is greedy; default: the checkpoint's own.")
    ] = None
    top_p: Annotated[
        float | None, typer.Option(help="Nucleus sampling; default: the checkpoint's.")
    ] = None
    top_k: Annotated[int | None, typer.Option(help="Keep k tokens; default: the checkpoint's.")] = (
        None
    )
    seed: Annotated[int | None, typer.Option(help="Makes the output reproducible.")] = None

    def over(self, defaults: SamplingParams) -> SamplingParams:
        """The checkpoint's sampling defaults, overridden by the user's options.

        Raises:
            InvalidRequestError: a value is out of range.
        """
        explicit = {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k}
        given: dict[str, Any] = {k: v for k, v in explicit.items() if v is not None}
        return replace(defaults, max_tokens=self.max_tokens, seed=self.seed, **given)


def expanded(command: Callable[..., None]) -> Callable[..., None]:
    """Replaces the option groups of a command by their fields."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name not in groups:
            parameters.append(parameter.replace(annotation=hints[name]))
            continue
        field_hints = get_type_hints(groups[name], include_extras=True)
        parameters += [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=field_hints[field.name],
            )
            for field in fields(groups[name])
        ]

    @wraps(command)
    def run(**values: Any) -> None:
        for name, kind in groups.items():
            own = {field.name: values.pop(field.name) for field in fields(kind)}
            values[name] = kind(**own)
        command(**values)

    signature = inspect.Signature(
        [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    )
    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run
