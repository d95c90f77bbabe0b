r"""Measures this engine and others on one checkpoint, in one run, and prints the ratios.

The checkpoint has random weights of a published shape. It is written once as W8A8 and converted
to the format of each engine: W8A8 (ours, vLLM), bf16 (transformers), GGUF Q8_0 (llama.cpp,
ik_llama.cpp), int8 per channel (OpenVINO). Each engine has its own virtual environment, passed as
a path, and runs in its own process, one at a time; ours runs before and after every other one.
docs/performance.md describes their installation.

    python benchmarks/compare_peers.py --shape qwen3-0.6b --checkpoint /data/random-0.6b \
        --peer llama_cpp=/venvs/llama --peer vllm_cpu=/venvs/vllm --json peers.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # `benchmarks` is no installed package

from benchmarks.peers.checkpoints import prepare  # noqa: E402
from benchmarks.peers.table import FIGURES, OURS, best_ratios, figure, markdown, rows  # noqa: E402
from benchmarks.peers.workload import RESULT_MARK, Workload  # noqa: E402
from qwen3_a8w8.bench.provenance import cpu_model  # noqa: E402
from qwen3_a8w8.version import git_commit  # noqa: E402

PEERS = (
    "ours_int8_lm_head",
    "llama_cpp",
    "ik_llama_cpp",
    "openvino_genai",
    "vllm_cpu",
    "transformers_bf16",
)
# vLLM's operators are several times slower without these two.
PRELOADED = {"vllm_cpu": ("libtcmalloc_minimal.so.4", "libiomp5.so")}
LIBRARY_DIRS = (Path("/usr/lib") / f"{os.uname().machine}-linux-gnu", Path("/usr/lib64"))

DEFAULT_TIMEOUT_S = 900.0  # loading, compiling and measuring the 4B shape


class PeerFailedError(Exception):
    """An engine returned no result; the message has the end of its output."""


def peer_option(text: str) -> tuple[str, Path]:
    """Parses `NAME=VENV`."""
    name, _, venv = text.partition("=")
    if name not in PEERS:
        raise argparse.ArgumentTypeError(f"peer {name!r} isn't known; one of {', '.join(PEERS)}")
    if not (Path(venv) / "bin" / "python").exists():
        raise argparse.ArgumentTypeError(f"{venv!r} has no bin/python; give {name}'s venv")
    # Not resolved: a venv is known by the name of its link.
    return name, Path(venv).absolute()


def preloaded(name: str, venv: Path) -> str:
    """Paths for LD_PRELOAD; the peer's own venv first, then the system's directories."""
    paths = []
    for library in PRELOADED.get(name, ()):
        places = [directory / library for directory in (venv / "lib", *LIBRARY_DIRS)]
        found = next((path for path in places if path.exists()), None)
        if found is None:
            sys.exit(
                f"{name} needs {library}, and it is in none of "
                f"{', '.join(str(path.parent) for path in places)}; see docs/performance.md"
            )
        paths.append(str(found))
    return ":".join(paths)


@dataclass(frozen=True, slots=True)
class Task:
    """Arguments of every engine.

    Attributes:
        checkpoint: directory with one checkpoint in all formats.
        threads: CPU threads.
        workload: what is measured.
        timeout_s: after which an engine has failed.
    """

    checkpoint: Path
    threads: int
    workload: Workload
    timeout_s: float


def run_peer(name: str, python: Path, task: Task, env: dict[str, str]) -> dict[str, Any]:
    """Runs one adapter in a separate process.

    Raises:
        PeerFailedError: it crashed, took too long, or printed no result.
    """
    command = [str(python), "-m", f"benchmarks.peers.{name}", str(task.checkpoint)]
    command += ["--threads", str(task.threads), "--workload", json.dumps(asdict(task.workload))]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=task.timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise PeerFailedError(f"{name} took more than {task.timeout_s} s") from error
    lines = [line for line in done.stdout.splitlines() if line.startswith(RESULT_MARK)]
    if done.returncode != 0 or len(lines) != 1:
        end = (done.stdout + done.stderr)[-4000:]
        raise PeerFailedError(f"{name} failed with status {done.returncode}:\n{end}")
    result: dict[str, Any] = json.loads(lines[0].removeprefix(RESULT_MARK))
    return result


def run_all(
    peers: dict[str, Path],
    rounds: int,
    task: Task,
    on_runs: Callable[[list[dict[str, Any]], list[str]], None],
) -> tuple[list[dict[str, Any]], list[str]]:
    """Runs ours, a peer, ours, the next peer and so on.

    Args:
        peers: name and virtual environment of each.
        rounds: how often each runs.
        task: what they do.
        on_runs: gets what will be returned as far as it is there, whenever ours has run.

    Returns:
        Results in the order of the runs, and the names of peers that failed; those are left out
        afterwards, so that the others' minutes aren't lost.

    Raises:
        PeerFailedError: ours failed, without which there is nothing to compare.
    """
    env = {name: {"LD_PRELOAD": preloaded(name, venv)} for name, venv in peers.items()}
    pythons = {name: venv / "bin" / "python" for name, venv in peers.items()}
    order = [OURS, *(name for _ in range(rounds) for peer in peers for name in (peer, OURS))]
    runs: list[dict[str, Any]] = []
    failed: list[str] = []
    for name in order:
        if name in failed or (name == OURS and runs and runs[-1]["peer"] == OURS):
            continue
        python = pythons.get(name, Path(sys.executable))
        print(f"running {name}", file=sys.stderr, flush=True)
        begin = time.perf_counter()
        try:
            runs.append(run_peer(name, python, task, env.get(name, {})))
        except PeerFailedError as error:
            if name == OURS:
                raise
            failed.append(name)
            print(error, file=sys.stderr, flush=True)
            continue
        seconds = {each: figure(runs[-1], each) for each in FIGURES}
        print(
            f"  {', '.join(f'{each} {value * 1e3:.2f} ms' for each, value in seconds.items())}; "
            f"{time.perf_counter() - begin:.0f} s in all",
            file=sys.stderr,
            flush=True,
        )
        if name == OURS:
            on_runs(runs, failed)
    return runs, failed


def provenance(shape: str, workload: Workload) -> dict[str, Any]:
    """Provenance of the figures."""
    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": git_commit(ROOT),
        "cpu": cpu_model(),
        "shape": shape,
        "workload": asdict(workload),
        # For example ONEDNN_MAX_CPU_ISA, which disables AMX in OpenVINO and vLLM.
        "environment": {
            name: value
            for name, value in os.environ.items()
            if name.startswith(("ONEDNN_", "DNNL_", "OMP_", "KMP_", "GOMP_"))
        },
    }


def has_peer(runs: list[dict[str, Any]]) -> bool:
    """Whether anything has run that isn't ours or a variant of it."""
    return any(not run["peer"].startswith(OURS) for run in runs)


def report(origin: dict[str, Any], runs: list[dict[str, Any]], failed: list[str]) -> dict[str, Any]:
    """Content of the JSON file; `runs` start and end with ours."""
    table = rows(runs)
    variants = [row.name for row in table if row.name.startswith(OURS)]
    return {
        "provenance": origin,
        "machine": {},
        "results": [asdict(row) for row in table],
        "best_peer_over": {name: best_ratios(table, name) for name in variants},
        "failed": failed,
        "runs": runs,
    }


def main() -> None:
    """Prepares what is missing, runs everything, prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", default="qwen3-0.6b", help="a published size")
    parser.add_argument("--checkpoint", type=Path, required=True, help="made if it isn't there")
    parser.add_argument(
        "--peer", type=peer_option, action="append", default=[], metavar="NAME=VENV"
    )
    parser.add_argument("--rounds", type=int, default=1, help="times that every peer runs")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--timeout-s", type=float, default=DEFAULT_TIMEOUT_S, help="most seconds of one run"
    )
    parser.add_argument(
        "--workload", type=json.loads, default={}, help="JSON with fields of Workload to change"
    )
    parser.add_argument("--prepare-only", action="store_true", help="write the checkpoints, stop")
    parser.add_argument("--json", type=Path, help="file to write")
    args = parser.parse_args()
    peers = dict(args.peer)
    checkpoint = args.checkpoint.absolute()
    prepare(args.shape, checkpoint, peers, ROOT)
    if args.prepare_only:
        return
    num_cores = len(os.sched_getaffinity(0))
    if args.threads > num_cores:
        sys.exit(f"--threads is {args.threads}, this process may use {num_cores} cores")
    workload = Workload(**args.workload)
    task = Task(checkpoint, args.threads, workload, args.timeout_s)

    def save(runs: list[dict[str, Any]], failed: list[str]) -> None:
        # Whoever interrupts a long comparison keeps what has been measured.
        if args.json and has_peer(runs):
            content = report(provenance(args.shape, workload), runs, failed)
            args.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    try:
        runs, failed = run_all(peers, args.rounds, task, save)
    except PeerFailedError as error:
        sys.exit(str(error))
    save(runs, failed)
    if not has_peer(runs):
        sys.exit("no peer gave a result, there is nothing to compare with")
    text = markdown(
        rows(runs), batch_size=workload.batch_size, prefill_tokens=workload.prefill_tokens
    )
    print(f"\n{args.shape}, {args.threads} threads, {cpu_model()}\n\n{text}")
    if failed:
        sys.exit(f"no result from {', '.join(failed)}; see above")


if __name__ == "__main__":
    main()
