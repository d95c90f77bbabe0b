"""The first day on an Ascend machine: probe, test, measure, compare; one report.

    python tools/npu_first_day.py                        # everything, Qwen3-0.6B to 14B
    python tools/npu_first_day.py --models demo          # minutes, no large files

Each part is a process of its own with a time limit; a part that fails, hangs or loses the device is
noted, and the next one starts. The report (Markdown, `--report`) begins with the list of
what failed, an op by its name; a JSON file beside it has everything.

On a machine without an NPU it runs on the emulation: PYTHONPATH=tools/npu_emulation.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OP_CHECKS = Path(__file__).resolve().parent / "npu_op_checks.py"
CLI = (sys.executable, "-m", "qwen3_a8w8.cli.main")
MODELS = ("qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b", "qwen3-14b")
DEMO = "demo"
TAIL_CHARACTERS = 6000
MAX_OP_RESTARTS = 24
LOST_DEVICE = "error code is 507"
"""Codes 507xxx are faults of the device, after which the process can't use it."""


@dataclass(frozen=True)
class Published:
    """A figure of another project on this hardware."""

    model: str
    batch: int
    context: int
    tpot_ms: float
    source: str


PUBLISHED = (
    Published("qwen3-14b", 1, 128, 42.0, "pypto-serving, Qwen3-14B A8W8 (56 before tuning)"),
    Published("qwen3-14b", 16, 3350, 37.7, "bf16, B16 at about 3,350 tokens"),
    Published("qwen3-8b", 1, 128, 5.0, "8B W8A8, one A3 card (two dies), with draft tokens"),
    Published("qwen3-8b", 16, 128, 11.8, "8B W8A8, one A3 card (two dies), batch 16"),
)


@dataclass
class Part:
    """One process and its end."""

    name: str
    command: list[str]
    limit_s: float
    status: str = "not run"
    seconds: float = 0.0
    output: str = ""
    results: dict[str, Any] = field(default_factory=dict)

    def run(self, **variables: str) -> bool:
        """Runs the process and everything it starts; returns whether it exited with 0."""
        print(f"... {self.name}", flush=True)
        start = time.monotonic()
        environment = os.environ | {"PYTHONUNBUFFERED": "1"} | variables
        try:
            process = subprocess.Popen(
                self.command,
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            self.status, self.output = "failed", f"{type(error).__name__}: {error}"
            return False
        try:
            output, _ = process.communicate(timeout=self.limit_s)
            self.status = "ok" if process.returncode == 0 else f"failed ({process.returncode})"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            self.status = f"no end within {self.limit_s:.0f} s"
        self.output = output[-TAIL_CHARACTERS:]
        self.seconds = time.monotonic() - start
        return self.status == "ok"

    @property
    def last_line(self) -> str:
        """What a failure most likely says: the last line that isn't decoration."""
        lines = [line.strip(" │╰╯─") for line in self.output.splitlines()]
        return next((line for line in reversed(lines) if line), "no output")


def check_ops(work: Path, limit_s: float) -> tuple[list[dict[str, Any]], list[Part]]:
    """Every op alone; an op that kills its process is noted, and the rest go on in another."""
    sys.path.insert(0, str(OP_CHECKS.parent))
    from npu_op_checks import CHECKS

    found: dict[str, dict[str, Any]] = {}
    parts: list[Part] = []
    for attempt in range(MAX_OP_RESTARTS):
        waiting = [name for name in CHECKS if name not in found]
        if not waiting:
            break
        path = work / f"ops-{attempt}.jsonl"
        path.write_text("", encoding="utf-8")
        part = Part("ops", [sys.executable, str(OP_CHECKS), str(path), *waiting], limit_s)
        has_ended = part.run()
        parts.append(part)
        entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        found |= {entry["op"]: entry for entry in entries}
        started = [name for name in part.output.splitlines() if name in CHECKS]
        if not started:  # the device can't be opened: no op can be checked
            found |= {name: _not_checked(name, part.last_line) for name in waiting}
        elif not has_ended and started[-1] not in found:
            found[started[-1]] = _not_checked(started[-1], f"{part.status}: {part.last_line}")
        # The op that lost the device failed; those after it are tried again in a fresh process.
        lost = [name for name in waiting if LOST_DEVICE in found.get(name, {}).get("detail", "")]
        for name in lost[1:]:
            del found[name]
    return [found[name] for name in CHECKS if name in found], parts


def _not_checked(name: str, detail: str) -> dict[str, Any]:
    return {"op": name, "status": "failed", "detail": detail}


def machine_facts() -> dict[str, str]:
    """Versions and devices, as far as they can be had without opening a device."""
    facts = {
        "host": f"{platform.machine()} {platform.system()}",
        "python": platform.python_version(),
    }
    code = (
        "import torch, torch_npu\n"
        "from torch_npu.npu.utils import get_soc_version, get_cann_version\n"
        "free, total = torch_npu.npu.mem_get_info()\n"
        "print('torch', torch.__version__, sep='\\t')\n"
        "print('torch_npu', torch_npu.__version__, sep='\\t')\n"
        "is_emulated = hasattr(torch_npu, 'EMULATED_TORCH_DEVICE')\n"
        "print('hardware', 'EMULATION on the CPU' if is_emulated else 'real', sep='\\t')\n"
        "print('devices', torch_npu.npu.device_count(), sep='\\t')\n"
        "print('chip', torch_npu.npu.get_device_name(0), get_soc_version(), sep='\\t')\n"
        "print('memory', f'{free / 2**30:.1f} of {total / 2**30:.1f} GiB free', sep='\\t')\n"
        "print('CANN', get_cann_version(), sep='\\t')\n"
    )
    part = Part("machine", [sys.executable, "-c", code], 300)
    part.run()
    for line in part.output.splitlines():
        name, tab, value = line.partition("\t")
        if tab:
            facts[name] = value.replace("\t", ", ")
    if part.status != "ok":
        facts["error"] = part.last_line
    smi = shutil.which("npu-smi")
    if smi is not None:
        info = Part("npu-smi", [smi, "info"], 60)
        info.run()
        facts["npu-smi"] = info.output
    return facts


def software_parts(is_quick: bool, limit_s: float) -> list[Part]:
    """What every installation must pass, whatever the model."""
    suite = ["tests/kernels/npu/on_device", *(["-k", "any_batch"] if is_quick else [])]
    return [
        Part("doctor", [*CLI, "doctor"], 300),
        Part(
            "kernel suite",
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *suite],
            limit_s,
        ),
        Part(
            "generate, demo model",
            [*CLI, "generate", "--device", "npu", "-m", DEMO, "-p", "What is 2 + 3?"],
            limit_s,
        ),
    ]


def model_parts(
    model: str, checkpoint: str, work: Path, is_quick: bool, limit_s: float
) -> list[Part]:
    """check and benchmarks of one model."""
    tokens = ["--tokens", "2"] if is_quick else []
    parts = [
        Part(f"check, {model}", [*CLI, "check", checkpoint, "--device", "npu", *tokens], limit_s)
    ]
    if model != DEMO:
        # Random weights have no text to check: their outputs need not be language.
        parts = []
    shape = model if model != DEMO else checkpoint
    bench = [*CLI, "bench", "kernels", "--device", "npu", "-m", shape, "--json"]
    quick = ["--min-seconds", "0", "--memory-gib", "0.02"] if is_quick else []
    parts.append(
        Part(
            f"bench kernels, {model}",
            [*bench, str(work / f"kernels-{model}.json"), *quick],
            limit_s,
        )
    )
    contexts = ((1, 16), (16, 16)) if is_quick else ((1, 128), (16, 128), (16, 3350))
    for batch, context in contexts:
        name = f"engine-{model}-b{batch}-{context}"
        command = [*CLI, "bench", "engine", "--device", "npu", "-m", checkpoint]
        command += ["--batch", str(batch), "--context", str(context)]
        command += ["--new-tokens", "4" if is_quick else "64", "--json", str(work / f"{name}.json")]
        if is_quick:
            command += ["--prompt-tokens", "16"]
        parts.append(Part(f"bench engine, {model}, B{batch} at {context}", command, limit_s))
    return parts


def run_models(models: Sequence[str], work: Path, *, keep: bool, limit_s: float) -> list[Part]:
    """Benchmarks from the smallest model up; a random checkpoint of each size is made for it."""
    done: list[Part] = []
    for model in models:
        checkpoint = work / model
        if model == DEMO:
            parts = model_parts(model, DEMO, work, True, limit_s)
        else:
            synth = Part(
                f"synth, {model}", [*CLI, "synth", str(checkpoint), "--shape", model], limit_s
            )
            done.append(synth)
            if not checkpoint.exists() and not synth.run():
                continue
            parts = model_parts(model, str(checkpoint), work, False, limit_s)
        for part in parts:
            part.run()
            path = next((Path(each) for each in part.command if each.endswith(".json")), None)
            if part.status == "ok" and path is not None:
                part.results = json.loads(path.read_text(encoding="utf-8"))
        done += parts
        if model != DEMO and not keep:
            shutil.rmtree(checkpoint, ignore_errors=True)
    return done


def comparison(parts: Sequence[Part]) -> list[tuple[Published, float | None]]:
    """Published figures, each with ours in milliseconds per token, or None."""
    ours: dict[tuple[str, int, int], float] = {}
    for part in parts:
        found = re.fullmatch(r"bench engine, (\S+), B(\d+) at (\d+)", part.name)
        if found and part.results:
            tpot_ms = 1e3 * part.results["results"][0]["tpot_s"]
            ours[found[1], int(found[2]), int(found[3])] = tpot_ms
    return [(each, ours.get((each.model, each.batch, each.context))) for each in PUBLISHED]


def failures(ops: Sequence[dict[str, Any]], parts: Sequence[Part]) -> list[str]:
    """What failed, one line each, ops by name."""
    lines = [
        f"op {op['op']}: {op['status']}, {_one_line(op['detail'])}"
        for op in ops
        if op["status"] != "ok"
    ]
    lines += [
        f"op {op['op']}: a row has other bits alone than among 16: the backend must not use it so"
        for op in ops
        if op.get("is_batch_invariant") is False
    ]
    return lines + [
        f"{part.name}: {part.status}, {_one_line(part.last_line)}"
        for part in parts
        if part.status != "ok"
    ]


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]


def report(
    facts: dict[str, str], ops: Sequence[dict[str, Any]], parts: Sequence[Part], failed: list[str]
) -> str:
    """The report in Markdown."""
    lines = ["# First day on this machine", "", "## What failed", ""]
    lines += [f"- {line}" for line in failed] or ["Nothing."]
    lines += ["", "## Machine", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items() if name != "npu-smi"]
    if "npu-smi" in facts:
        lines += ["", "```", facts["npu-smi"].rstrip(), "```"]
    lines += [
        "",
        "## Ops",
        "",
        "| op | status | same bits alone and in 16 | detail |",
        "|---|---|---|---|",
    ]
    words = {True: "yes", False: "NO", None: "-"}
    for op in ops:
        same = words[op.get("is_batch_invariant")]
        lines.append(f"| {op['op']} | {op['status']} | {same} | {_one_line(op['detail'])} |")
    lines += ["", "## Against published figures", ""]
    lines += ["| | published, ms per token | here | |", "|---|---|---|---|"]
    for each, ours in comparison(parts):
        here, better = (
            ("not measured", "") if ours is None else (f"{ours:.1f}", f"{each.tpot_ms / ours:.2f}x")
        )
        lines.append(f"| {each.source} | {each.tpot_ms:.1f} | {here} | {better} |")
    lines += ["", "## Parts", "", "| part | status | seconds |", "|---|---|---|"]
    lines += [f"| {part.name} | {part.status} | {part.seconds:.0f} |" for part in parts]
    for part in parts:
        lines += ["", f"### {part.name}", "", "```", part.output.rstrip(), "```"]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Runs all parts; exits with 1 if something failed, after the report is written."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--models", default=",".join((DEMO, *MODELS)), help="with commas")
    parser.add_argument("--report", type=Path, default=Path("npu_first_day.md"))
    parser.add_argument("--work-dir", type=Path, default=Path(".cache/npu_first_day"))
    parser.add_argument("--limit-s", type=float, default=3600, help="per part, in seconds")
    parser.add_argument("--quick", action="store_true", help="a few kernel tests instead of all")
    parser.add_argument("--ops-only", action="store_true", help="stop after the ops")
    parser.add_argument("--keep", action="store_true", help="keep the random checkpoints")
    options = parser.parse_args()
    models = [name for name in options.models.split(",") if name]
    unknown = sorted(set(models) - {DEMO, *MODELS, "qwen3-32b"})
    if unknown:
        parser.error(f"unknown models {unknown}; there are {(DEMO, *MODELS, 'qwen3-32b')}")
    work = options.work_dir.resolve()
    work.mkdir(parents=True, exist_ok=True)

    facts = machine_facts()
    ops, parts = check_ops(work, options.limit_s)
    if not options.ops_only:
        software = software_parts(options.quick, options.limit_s)
        for part in software:
            part.run()
        parts += software
        parts += run_models(models, work, keep=options.keep, limit_s=options.limit_s)
    failed = failures(ops, parts)

    options.report.write_text(report(facts, ops, parts, failed), encoding="utf-8")
    everything = {
        "machine": facts,
        "failed": failed,
        "ops": ops,
        "parts": [asdict(p) for p in parts],
    }
    options.report.with_suffix(".json").write_text(
        json.dumps(everything, indent=1), encoding="utf-8"
    )
    print(f"\n{len(failed)} failures; report in {options.report}")
    for line in failed:
        print(f"  {line}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
