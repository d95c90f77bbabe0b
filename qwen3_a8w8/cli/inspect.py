"""`qwen3-a8w8 inspect`: a checkpoint's contents and memory needs, without loading it."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from qwen3_a8w8.cli import options


def inspect(
    model: Annotated[str, typer.Argument(help="Checkpoint directory, 'demo', or hub id.")],
    memory_gib: Annotated[
        float | None,
        typer.Option(help="Free memory of the device in GiB; default: this host's free memory."),
    ] = None,
    max_model_len: options.MaxModelLen = None,
    num_kv_blocks: options.NumKvBlocks = None,
    kv_cache_dtype: Annotated[str, typer.Option(help="int8 or bf16 (experimental).")] = "int8",
    is_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """Show format, scheme of every linear, sizes, memory and KV blocks of a checkpoint."""
    from qwen3_a8w8.checkpoint.checkpoint import open_checkpoint
    from qwen3_a8w8.checkpoint.resolve import resolve_model
    from qwen3_a8w8.config import EngineConfig
    from qwen3_a8w8.runner.inspection import inspect_checkpoint
    from qwen3_a8w8.runner.sizing import free_host_memory_bytes

    free = free_host_memory_bytes() if memory_gib is None else int(memory_gib * 2**30)
    engine = EngineConfig(
        max_model_len=max_model_len, num_kv_blocks=num_kv_blocks, kv_cache_dtype=kv_cache_dtype
    )
    with open_checkpoint(resolve_model(model)) as checkpoint:
        found = inspect_checkpoint(checkpoint, engine, free)
    if is_json:
        typer.echo(json.dumps(found.as_dict(), indent=2))
        return
    console = Console()
    linears = Table("linears", "number", "memory", "which", title=f"{found.path} ({found.format})")
    for group in found.groups:
        linears.add_row(
            group.scheme, str(group.count), _size(group.num_bytes), "\n".join(group.linears)
        )
    console.print(linears)
    facts = Table(show_header=False)
    facts.add_row("parameters", f"{found.num_parameters / 1e6:,.1f} million")
    facts.add_row("weight files", _size(found.file_bytes))
    facts.add_row("weights in memory", _size(found.weight_bytes))
    facts.add_row("free before loading", _size(found.free_bytes))
    facts.add_row("longest sequence", f"{found.max_model_len} tokens")
    facts.add_row(
        "one KV block",
        f"{found.block_size} tokens in {found.kv_cache_dtype}, {_size(found.kv_block_bytes)}",
    )
    facts.add_row("KV blocks", f"{found.num_kv_blocks}, room for {found.num_kv_tokens} tokens")
    facts.add_row("fingerprint", found.fingerprint[:16])
    console.print(facts)
    for note in found.notes:
        console.print(f"note: {note}", style="yellow", markup=False, highlight=False)


def _size(num_bytes: int) -> str:
    value, unit = float(num_bytes), "bytes"
    for larger in ("KiB", "MiB", "GiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.2f} {unit}"
