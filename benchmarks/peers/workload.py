"""The workload of every engine, and its timing. Standard library only.

An engine has one method, `generate`: greedy tokens for prompts of equal length, and the
times at which they arrived. All three figures are computed from these: the time of a prompt
alone, of a decode step alone, and of a decode step of the whole batch.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import random
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

RESULT_MARK = "PEER_RESULT "
"""Prefix of the line with the result; engines print other lines too."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Sizes of the three measurements.

    Attributes:
        prefill_tokens: length of the prompt that is timed alone.
        num_prefills: how often, each time another prompt.
        context_tokens: length of the prompts that are decoded from.
        warmup_steps: decode steps that aren't counted, before those that are.
        b1_steps: decode steps of one sequence.
        b16_steps: decode steps of the batch.
        batch_size: sequences in the batch.
        vocab_size: ids are drawn below it.
    """

    prefill_tokens: int = 512
    num_prefills: int = 5
    context_tokens: int = 128
    warmup_steps: int = 4
    b1_steps: int = 40
    b16_steps: int = 24
    batch_size: int = 16
    vocab_size: int = 151936

    @property
    def max_tokens_per_sequence(self) -> int:
        """Length of the longest sequence."""
        num_steps = self.warmup_steps + max(self.b1_steps, self.b16_steps)
        return max(self.prefill_tokens, self.context_tokens + num_steps) + 1

    def prompts(self, count: int, length: int, seed: int) -> list[list[int]]:
        """Random ids without a common prefix.

        Args:
            count: number of prompts.
            length: tokens of each.
            seed: the same seed gives the same prompts in every process.
        """
        rng = random.Random(f"{seed}/{length}")
        return [[rng.randrange(self.vocab_size) for _ in range(length)] for _ in range(count)]


@dataclass(frozen=True, slots=True)
class Generated:
    """Result of `generate`.

    Attributes:
        token_ids: one list per prompt.
        instants: `time.perf_counter()` at the call, then when every prompt had its first
            token, its second, and so on, in the hands of the caller.
    """

    token_ids: list[list[int]]
    instants: list[float]

    @property
    def first_token_s(self) -> float:
        """Seconds from the call to the first tokens."""
        return self.instants[1] - self.instants[0]

    @property
    def step_s(self) -> list[float]:
        """Seconds from each token to the next."""
        return [later - earlier for earlier, later in pairwise(self.instants[1:])]


class Peer(Protocol):
    """An engine with a model, ready to run."""

    def generate(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> Generated:
        """Decodes greedily, all prompts in one batch, ignoring end-of-sequence tokens.

        Args:
            prompts: 1 or `Workload.batch_size` prompts of equal length.
            num_tokens: tokens to generate for each.
        """
        ...


def measure(peer: Peer, workload: Workload) -> dict[str, Any]:
    """Runs the three measurements; first prompt and first steps warm up and aren't counted.

    Returns:
        Lists of seconds `prefill_s`, `b1_step_s`, `b16_step_s`, and `first_ids`: what the
        engine says after each of the timed prompts, by which engines can be compared.
    """
    timed = workload.prompts(workload.num_prefills + 1, workload.prefill_tokens, seed=0)
    prefills = [peer.generate([prompt], 1) for prompt in timed][1:]
    skipped = workload.warmup_steps
    alone = workload.prompts(1, workload.context_tokens, seed=2)
    b1 = peer.generate(alone, skipped + workload.b1_steps + 1)
    batch = workload.prompts(workload.batch_size, workload.context_tokens, seed=4)
    b16 = peer.generate(batch, skipped + workload.b16_steps + 1)
    return {
        "prefill_s": [each.first_token_s for each in prefills],
        "b1_step_s": b1.step_s[skipped:],
        "b16_step_s": b16.step_s[skipped:],
        "first_ids": [each.token_ids[0][0] for each in prefills],
        "b16_ids": [ids[0] for ids in b16.token_ids],
    }


def run_adapter(
    name: str, packages: Sequence[str], load: Callable[[Path, int, Workload], Peer]
) -> None:
    """The `main` of an adapter: reads its options, measures, prints the result.

    Args:
        name: the engine's name in the tables.
        packages: distributions whose versions are noted.
        load: makes the engine from (checkpoint, threads, workload).
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.peers.{name}")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--workload", type=json.loads, default={}, help="fields of Workload")
    options = parser.parse_args()
    workload = Workload(**options.workload)
    begin = time.perf_counter()
    peer = load(options.checkpoint, options.threads, workload)
    load_s = time.perf_counter() - begin
    result = {
        "peer": name,
        "versions": {package: importlib.metadata.version(package) for package in packages},
        "threads": options.threads,
        "load_s": load_s,
        **measure(peer, workload),
        "peak_resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    print(f"\n{RESULT_MARK}{json.dumps(result)}", flush=True)
    # Some engines hang or crash while their threads are torn down; the work is done.
    os._exit(0)
