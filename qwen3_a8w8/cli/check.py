"""`qwen3-a8w8 check`: the reproducible quality gate; status 1 if the model fails it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from qwen3_a8w8.cli import options

if TYPE_CHECKING:
    from qwen3_a8w8.check.report import CheckReport


def check(
    model: Annotated[str, typer.Argument(help="Checkpoint directory, 'demo', or hub id.")],
    reference: Annotated[
        str | None, typer.Option(help="The floating-point model that it was quantised from.")
    ] = None,
    tokens: Annotated[
        str, typer.Option(help="Output lengths at which outputs are evaluated, with commas.")
    ] = "16,48",
    golden: Annotated[
        Path | None, typer.Option(help="Outputs of an earlier run that must be reproduced.")
    ] = None,
    write_golden: Annotated[Path | None, typer.Option(help="Save the outputs there.")] = None,
    enable: options.Enable = None,
    is_matrix: Annotated[
        bool, typer.Option("--matrix", help="Check the default and each experimental flag alone.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option(help="With --matrix: write the table there, as Markdown.")
    ] = None,
    bench_json: Annotated[
        Path | None, typer.Option(help="With --matrix: speed from 'bench engine --matrix --json'.")
    ] = None,
    max_repetition: Annotated[float, typer.Option(help="Share of outputs that may loop.")] = 0.25,
    min_agreement: Annotated[float, typer.Option(help="With the float model's choices.")] = 0.8,
    max_kl: Annotated[float, typer.Option(help="From the float model, nats per token.")] = 0.1,
    max_perplexity_ratio: Annotated[float, typer.Option(help="To the float model's.")] = 1.1,
    device: options.Device = "auto",
    num_threads: options.NumThreads = None,
    isa: options.Isa = None,
    is_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """Complete fixed prompts, predict fixed texts, compare bits; fail on any deviation."""
    from qwen3_a8w8.check.material import Material, read_golden
    from qwen3_a8w8.check.material import write_golden as save_golden
    from qwen3_a8w8.check.matrix import matrix_markdown, read_bench, run_matrix
    from qwen3_a8w8.check.report import Limits
    from qwen3_a8w8.check.run import CheckSettings, run_check
    from qwen3_a8w8.checkpoint.resolve import resolve_model
    from qwen3_a8w8.errors import ConfigError

    try:
        lengths = tuple(sorted({int(part) for part in tokens.split(",")}))
    except ValueError as error:
        raise ConfigError(f"tokens is {tokens!r}, expected numbers such as 16,48") from error
    settings = CheckSettings(
        tokens=lengths,
        device=device,
        num_threads=num_threads,
        isa=isa,
        enable=tuple(enable or ()),
        limits=Limits(max_repetition, min_agreement, max_kl, max_perplexity_ratio),
    )
    directory = resolve_model(model)
    material = Material.of_model(directory)
    source = None if reference is None else resolve_model(reference)
    status = Console(stderr=True)
    if is_matrix:
        speed = None if bench_json is None else read_bench(bench_json)
        reports = run_matrix(directory, material, settings, reference=source, on_stage=status.print)
        text = matrix_markdown(reports, speed)
        if output is not None:
            output.write_text(text, encoding="utf-8")
        typer.echo(json.dumps([r.as_dict() for r in reports], indent=1) if is_json else text)
        sys.exit(1 if reports[0].problems else 0)
    report = run_check(
        directory,
        material,
        settings,
        reference=source,
        golden=None if golden is None else read_golden(golden),
        on_stage=status.print,
    )
    if write_golden is not None:
        save_golden(write_golden, [entry.token_ids for entry in report.outputs])
    if is_json:
        typer.echo(json.dumps(report.as_dict(), indent=1))
    else:
        _print(report, Console())
    sys.exit(1 if report.problems else 0)


def _print(report: CheckReport, console: Console) -> None:
    table = Table("what", "found", title=f"{report.model} ({report.format})")
    table.add_row("flags", ", ".join(report.flags) or "none")
    table.add_row("backend", ", ".join(f"{k} {v}" for k, v in report.backend.items()))
    for length in report.tokens:
        agreement = report.agreement(length)
        table.add_row(
            f"outputs with repetitions, {length} tokens", f"{report.repetition_share(length):.0%}"
        )
        if agreement is not None:
            table.add_row(f"agreement with float, {length} tokens", f"{agreement:.1%}")
    texts = report.texts
    note = "" if texts.reference_perplexity is not None else " (no limit without a reference)"
    table.add_row("perplexity of the texts", f"{texts.perplexity:.3f}{note}")
    if texts.reference_perplexity is not None:
        table.add_row("perplexity of the float model", f"{texts.reference_perplexity:.3f}")
        table.add_row("top-1 agreement with float", f"{texts.agreement:.1%}")
        table.add_row("KL divergence", f"{texts.kl:.5f}")
    for name, is_same in report.invariance.items():
        table.add_row(name, "same bits" if is_same else "DIFFERENT BITS")
    if report.golden_differences is not None:
        same = len(report.outputs) - len(report.golden_differences)
        table.add_row("outputs as in the golden file", f"{same} of {len(report.outputs)}")
    console.print(table)
    for problem in report.problems:
        console.print(f"failed: {problem}", style="red", markup=False, highlight=False)
    if not report.problems:
        console.print("passed", style="green")
