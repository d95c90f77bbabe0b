"""`qwen3-a8w8 bench`: measure kernels and engine on this machine, and a server under load."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from qwen3_a8w8.cli import bench_serve, options
from qwen3_a8w8.errors import ConfigError

if TYPE_CHECKING:
    from qwen3_a8w8.kernels.backend import Backend

app = typer.Typer(
    help="Measure kernels and engine against the limits of this machine, and a server under load.",
    no_args_is_help=True,
)
app.command(cls=bench_serve.ListOptions)(bench_serve.serve)

Json = Annotated[Path | None, typer.Option("--json", help="File to write the results to as JSON.")]


@app.command()
def kernels(
    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            help="Shape such as qwen3-14b (no checkpoint needed), or a checkpoint.",
        ),
    ] = "qwen3-0.6b",
    device: options.Device = "auto",
    num_threads: options.NumThreads = None,
    isa: options.Isa = None,
    min_seconds: Annotated[
        float, typer.Option(min=0, help="Least time spent on each case, in seconds.")
    ] = 1.0,
    memory_gib: Annotated[
        float, typer.Option(min=0.01, help="Most memory for the copies of one weight, in GiB.")
    ] = 4.0,
    json_file: Json = None,
) -> None:
    """Measure the linears and lm_head of a model's shape at 1, 16 and 512 rows."""
    from qwen3_a8w8.bench import kernels as bench  # imports torch
    from qwen3_a8w8.bench import report
    from qwen3_a8w8.bench.machine import Machine, measurable_backend
    from qwen3_a8w8.bench.provenance import provenance
    from qwen3_a8w8.checkpoint.checkpoint import open_checkpoint
    from qwen3_a8w8.checkpoint.resolve import resolve_model
    from qwen3_a8w8.checkpoint.shapes import SHAPES
    from qwen3_a8w8.runner.sizing import free_host_memory_bytes

    report.check_writable(json_file)
    config, fingerprint = SHAPES.get(model), None
    if config is None:
        with open_checkpoint(resolve_model(model)) as checkpoint:
            config, fingerprint = checkpoint.config, checkpoint.fingerprint
    console = Console(stderr=True)
    backend = measurable_backend(device, num_threads, isa)
    with console.status("measuring the machine") as status:
        free_bytes = free_host_memory_bytes()
        machine = Machine(backend, free_bytes)
        results = bench.bench_kernels(
            config,
            backend,
            machine,
            memory_bytes=min(int(memory_gib * 2**30), free_bytes // 2),
            min_seconds=min_seconds,
            on_progress=lambda op: status.update(f"measuring {op}"),
        )
    source = provenance(backend, model=model, fingerprint=fingerprint)
    backend.close()
    title = f"kernels, {model}, {_label(backend)}"
    report.print_kernels(title, machine.as_dict(), results)
    if json_file is not None:
        report.write_json(json_file, source, machine.as_dict(), results)


@app.command()
def engine(
    model: options.Model = "demo",
    prompt_tokens: Annotated[
        int, typer.Option(help="Length of the prompt timed separately.")
    ] = 128,
    new_tokens: Annotated[int, typer.Option(help="Decode steps of the batch.")] = 32,
    batch: Annotated[int, typer.Option(help="Sequences that decode together, 1 or 16.")] = 1,
    context: Annotated[
        int | None,
        typer.Option(help="Tokens of each sequence before it decodes; default: --prompt-tokens."),
    ] = None,
    device: options.Device = "auto",
    enable: options.Enable = None,
    use_mmap: options.UseMmap = True,
    is_matrix: Annotated[
        bool, typer.Option("--matrix", help="Measure the default and each experimental flag alone.")
    ] = False,
    num_threads: options.NumThreads = None,
    isa: options.Isa = None,
    json_file: Json = None,
) -> None:
    """Measure prefill and decoding of a checkpoint; it needs no tokenizer."""
    from qwen3_a8w8.bench import engine as bench  # imports torch
    from qwen3_a8w8.bench import report
    from qwen3_a8w8.bench.machine import Machine, measurable_backend
    from qwen3_a8w8.bench.provenance import provenance
    from qwen3_a8w8.checkpoint.checkpoint import open_checkpoint
    from qwen3_a8w8.checkpoint.resolve import resolve_model
    from qwen3_a8w8.config import DECODE_BATCH_SIZES, EngineConfig
    from qwen3_a8w8.experimental import variants
    from qwen3_a8w8.kernels.select import select_backend
    from qwen3_a8w8.runner.model_runner import ModelRunner
    from qwen3_a8w8.runner.packed_cache import AUTO, PackedCache
    from qwen3_a8w8.runner.sizing import free_host_memory_bytes

    report.check_writable(json_file)
    if batch not in DECODE_BATCH_SIZES:
        raise ConfigError(f"--batch is {batch}, expected one of {DECODE_BATCH_SIZES}")
    workload = bench.Workload(
        batch_size=batch,
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        context_tokens=prompt_tokens if context is None else context,
    )
    console = Console(stderr=True)
    results = []
    with open_checkpoint(resolve_model(model)) as checkpoint, console.status("loading") as status:
        # Its own threads: a runner's are closed with it, the limits are measured afterwards.
        machine_backend = measurable_backend(device, num_threads, isa)
        machine = Machine(machine_backend, free_host_memory_bytes() // 2)
        for flags in variants() if is_matrix else [tuple(enable or ())]:
            config = workload.engine_config(
                EngineConfig(
                    device=device,
                    num_threads=num_threads,
                    isa=isa,
                    enable=flags,
                    use_mmap=use_mmap,
                )
            )
            backend = select_backend(device, num_threads, isa)
            packed_cache = PackedCache.from_setting(AUTO, use_mmap=use_mmap)
            runner = ModelRunner(checkpoint, config, backend, packed_cache)
            status.update(f"measuring {', '.join(flags) or 'the default'}")
            result = bench.bench_engine(
                runner, config, checkpoint.config, machine, workload, runner.device.packed_memory
            )
            results.append({"flags": list(flags), **result})
        source = provenance(machine_backend, model=model, fingerprint=checkpoint.fingerprint)
        title = f"engine, {model}, {_label(machine_backend)}"
        machine_backend.close()
    for result in results:
        which = f", {', '.join(result['flags'])}" if result["flags"] else ""
        report.print_engine(f"{title}{which}", machine.as_dict(), result)
    if json_file is not None:
        report.write_json(json_file, source, machine.as_dict(), results)


def _label(backend: Backend) -> str:
    """The backend in a title: instruction path and threads, or its name."""
    described = backend.describe()
    if "threads" in described:
        return f"{described['isa']}, {described['threads']} threads"
    return backend.name
