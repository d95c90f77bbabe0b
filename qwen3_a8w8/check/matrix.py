"""Compares the default and every single experimental flag in one table."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from qwen3_a8w8.check.material import Material
from qwen3_a8w8.check.report import CheckReport
from qwen3_a8w8.check.run import CheckSettings, run_check
from qwen3_a8w8.errors import ConfigError
from qwen3_a8w8.experimental import FLAGS, LEFT_OUT, variants


def run_matrix(
    model: Path,
    material: Material,
    settings: CheckSettings,
    *,
    reference: Path | None = None,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> list[CheckReport]:
    """Checks the default, then each flag alone; every flag's golden outputs are the default's.

    Args:
        model, material, settings, reference, on_stage: see `run_check`; `settings.enable` is
            replaced.

    Returns:
        Reports, the default's first.
    """
    default = run_check(
        model, material, replace(settings, enable=()), reference=reference, on_stage=on_stage
    )
    reports = [default]
    golden = [output.token_ids for output in default.outputs]
    for flags in variants()[1:]:
        on_stage(f"flag {flags[0]}")
        reports.append(
            run_check(
                model,
                material,
                replace(settings, enable=flags),
                reference=reference,
                golden=golden,
                on_stage=on_stage,
            )
        )
    return reports


def read_bench(path: Path) -> dict[tuple[str, ...], Mapping[str, Any]]:
    """Results of `bench engine --matrix --json FILE`, by flags.

    Raises:
        ConfigError: the file can't be read, or has another benchmark's results.
    """
    try:
        results = json.loads(path.read_text(encoding="utf-8"))["results"]
        found = {tuple(result["flags"]): result for result in results}
        for result in found.values():
            _times(result)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path}: expected JSON of 'bench engine --matrix', found something else: {error!r}"
        ) from error
    return found


def matrix_markdown(
    reports: Sequence[CheckReport],
    bench: Mapping[tuple[str, ...], Mapping[str, Any]] | None = None,
) -> str:
    """The table, preceded by a description of each flag.

    Args:
        reports: from `run_matrix`.
        bench: from `read_bench`, for columns of speed.
    """
    default = reports[0]
    longest = max(default.tokens)
    lines = [
        "# Experimental flags",
        "",
        "Off by default; `--enable NAME`, `enable:` in a configuration, or `LLM(enable=(...))`.",
        "",
    ]
    for flag in FLAGS.values():
        lines.append(
            f"- `{flag.name}`: {flag.summary} Changes {flag.changes}; {flag.status}. "
            f"Last measured: {flag.effect}."
        )
    backend = ", ".join(f"{key} {value}" for key, value in default.backend.items())
    titles = [
        "flag",
        "perplexity",
        "agreement with float",
        "KL",
        "loops",
        "outputs as default",
        "same bits in batch, cache, chunks",
        "passed",
    ]
    if bench is not None:
        titles += ["TTFT", "TPOT", "tokens/s"]
    lines += [
        "",
        f"`qwen3-a8w8 check {Path(default.model).name} --matrix`, {len(default.outputs)} prompts "
        f"of set {default.prompt_set}, {longest} tokens each, on {backend}.",
        "",
        f"| {' | '.join(titles)} |",
        "|---" * len(titles) + "|",
    ]
    for report in reports:
        texts = report.texts
        changed = report.golden_differences
        same = "" if changed is None else f"{len(report.outputs) - len(changed)}"
        cells = [
            ", ".join(report.flags) or "default",
            f"{texts.perplexity:.3f}",
            "" if texts.agreement is None else f"{texts.agreement:.1%}",
            "" if texts.kl is None else f"{texts.kl:.5f}",
            f"{report.repetition_share(longest):.0%}",
            f"{same} of {len(report.outputs)}" if same else "",
            "yes" if all(report.invariance.values()) else "no",
            "yes" if not _own_problems(report) else "no",
        ]
        if bench is not None:
            cells += _times(bench[report.flags]) if report.flags in bench else [""] * 3
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "Measured on an idle machine by", "", "```", *_commands(default.model), "```"]
    lines += ["", "## Tried and left out", ""]
    lines += [f"- `{name}`: {reason}" for name, reason in LEFT_OUT.items()]
    return "\n".join(lines) + "\n"


def _commands(model: str) -> list[str]:
    name = Path(model).name
    return [
        f"qwen3-a8w8 bench engine --model {name} --matrix --json bench.json &&",
        f"qwen3-a8w8 check {name} --reference {name} --matrix --bench-json bench.json "
        "--output docs/experimental.md",
    ]


def _times(result: Mapping[str, Any]) -> list[str]:
    return [
        f"{1e3 * result['ttft_s']:.1f} ms",
        f"{1e3 * result['tpot_s']:.2f} ms",
        f"{result['tokens_per_s']:.1f}",
    ]


def _own_problems(report: CheckReport) -> list[str]:
    """Problems, except changed outputs for a flag that changes output."""
    changes_output = any(FLAGS[name].changes == "output" for name in report.flags)
    return [p for p in report.problems if not (changes_output and "golden file" in p)]
