"""Writes the results of a benchmark: a table for people, JSON for scripts.

The JSON is `{"provenance": {...}, "machine": {...}, "results": [{...}]}`; `kernels.py`
and `engine.py` document the fields of their results.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from qwen3_a8w8.errors import ConfigError

Result = Mapping[str, Any]

KERNEL_COLUMNS = {
    "op": "{op}",
    "m": "{m}",
    "shape": "{out_features}x{in_features}",
    "best\nms": "{best_ms:.3f}",
    "GB/s": "{gbps:.1f}",
    "TMAC/s": "{tmacs:.3f}",
    "floor /\nbest": "{roofline_ratio:.2f}",
    "of\nmedians": "{median_roofline_ratio:.2f}",
}
PACKED_ROW = "plain read of weights"
"""Only for weights from a packed file."""
ENGINE_ROWS = {
    "batch, prompt, context": "{m}, {prompt_tokens}, {context_tokens} tokens",
    "time to first token": "{ttft_ms:.2f} ms",
    "prefill": "{prefill_tokens_per_s:.1f} tokens/s",
    "prefill floor / best": "{prefill_roofline_ratio:.2f}",
    "time per token": "{tpot_ms:.2f} ms (best {best_tpot_ms:.2f})",
    "tokens/s": "{tokens_per_s:.1f}",
    "device step": "{device_step_ms:.2f} ms",
    "host gap": "{host_gap_ms:.3f} ms",
    "bytes per step": "{gb_per_step:.3f} GB",
    "floor": "{floor_ms:.2f} ms",
    "floor / best": "{roofline_ratio:.2f} (of medians {median_roofline_ratio:.2f})",
    PACKED_ROW: "{weights_read_gbps:.1f} GB/s (its floor / best {weights_roofline_ratio:.2f})",
    "resident": "{resident_gib:.2f} GiB (weights {weight_gib:.2f}, KV {kv_cache_gib:.2f})",
    "of it in huge pages": "{huge_page_gib:.2f} GiB",
}


def print_kernels(title: str, machine: Mapping[str, float], results: Sequence[Result]) -> None:
    """Prints one row per result of `bench_kernels`.

    Args:
        title: what was measured.
        machine: the limits.
        results: the results.
    """
    table = _table(title, machine, *KERNEL_COLUMNS)
    for result in results:
        fields = _in_small_units(result)
        table.add_row(*(template.format_map(fields) for template in KERNEL_COLUMNS.values()))
    Console().print(table)


def print_engine(title: str, machine: Mapping[str, float], result: Result) -> None:
    """Prints the result of `bench_engine`, one row per figure.

    Args:
        title: what was measured.
        machine: the limits.
        result: the result.
    """
    table = _table(title, machine, "what", "measured")
    fields = _in_small_units(result)
    for label, template in ENGINE_ROWS.items():
        if label == PACKED_ROW and "weights_read_gbps" not in result:
            continue
        table.add_row(label, template.format_map(fields))
    Console().print(table)


def _table(title: str, machine: Mapping[str, float], *headings: str) -> Table:
    limits = ", ".join(
        f"{machine[name]:.4g} (median {machine[f'median_{name}']:.4g}) {unit}"
        for name, unit in (("read_gbps", "GB/s read"), ("int8_tmacs", "int8 TMAC/s"))
    )
    table = Table(title=title, caption=f"limits: {limits}", box=SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        # Wrapped, not truncated, on a narrow terminal: half a figure is worse than none.
        table.add_column(heading, overflow="fold")
    return table


def write_json(
    path: Path,
    provenance: Mapping[str, Any],
    machine: Mapping[str, float],
    results: Sequence[Result],
) -> None:
    """Writes everything to a file.

    Raises:
        ConfigError: it can't be written.
    """
    content = {
        "provenance": dict(provenance),
        "machine": dict(machine),
        "results": [dict(result) for result in results],
    }
    try:
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--json {path}: can't be written: {error.strerror}") from error


def check_writable(path: Path | None) -> None:
    """Rejects an invalid target for the JSON before minutes are spent on measuring.

    Raises:
        ConfigError: its directory doesn't exist.
    """
    if path is not None and (not path.parent.is_dir() or path.is_dir()):
        raise ConfigError(f"--json {path}: expected a file in a directory that exists")


def _in_small_units(result: Result) -> dict[str, Any]:
    fields = dict(result)
    for name, value in result.items():
        if name.endswith("_s") and not name.endswith("_per_s"):
            fields[f"{name[:-2]}_ms"] = value * 1e3
    fields["gb_per_step"] = result.get("bytes_per_step", 0) / 1e9
    for name in ("resident", "weight", "kv_cache", "huge_page"):
        fields[f"{name}_gib"] = result.get(f"{name}_bytes", 0) / 2**30
    return fields
