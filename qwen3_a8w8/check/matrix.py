"""The default and every experimental flag alone, side by side in one table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from qwen3_a8w8.check.material import Material
from qwen3_a8w8.check.report import CheckReport
from qwen3_a8w8.check.run import CheckSettings, run_check
from qwen3_a8w8.experimental import FLAGS, SKIP_SELF_CHECK


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
    for name in sorted(FLAGS.keys() - {SKIP_SELF_CHECK}):
        on_stage(f"flag {name}")
        reports.append(
            run_check(
                model,
                material,
                replace(settings, enable=(name,)),
                reference=reference,
                golden=golden,
                on_stage=on_stage,
            )
        )
    return reports


def matrix_markdown(reports: Sequence[CheckReport]) -> str:
    """The table, with what each flag does above it."""
    default = reports[0]
    longest = max(default.tokens)
    lines = [
        "# Experimental flags",
        "",
        "Off by default; `--enable NAME`, `enable:` in a configuration, or `LLM(enable=(...))`.",
        "",
    ]
    for flag in FLAGS.values():
        state = "held against the default by tests" if flag.is_validated else "not validated"
        lines.append(f"- `{flag.name}`: {flag.summary} Changes {flag.changes}; {state}.")
    backend = ", ".join(f"{key} {value}" for key, value in default.backend.items())
    lines += [
        "",
        f"`qwen3-a8w8 check {Path(default.model).name} --matrix`, {len(default.outputs)} prompts "
        f"of set {default.prompt_set}, {longest} tokens each, on {backend}. Times are of this run "
        "alone; compare them within a row's neighbours only.",
        "",
        "| flag | s/token alone | perplexity | agreement with float | KL | loops | outputs as "
        "default | same bits in batch, cache, chunks | passed |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for report in reports:
        texts = report.texts
        changed = report.golden_differences
        same = "" if changed is None else f"{len(report.outputs) - len(changed)}"
        cells = [
            ", ".join(report.flags) or "default",
            f"{report.seconds_per_token:.4f}",
            f"{texts.perplexity:.3f}",
            "" if texts.agreement is None else f"{texts.agreement:.1%}",
            "" if texts.kl is None else f"{texts.kl:.5f}",
            f"{report.repetition_share(longest):.0%}",
            f"{same} of {len(report.outputs)}" if same else "",
            "yes" if all(report.invariance.values()) else "no",
            "yes" if not _own_problems(report) else "no",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _own_problems(report: CheckReport) -> list[str]:
    """Problems but that a flag which changes output changes output."""
    changes_output = any(FLAGS[name].changes == "output" for name in report.flags)
    return [p for p in report.problems if not (changes_output and "golden file" in p)]
