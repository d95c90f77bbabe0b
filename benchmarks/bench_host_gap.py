"""Measures the host gap (device idle time between steps), and the effect of prompt lookup.

For each model: one sequence and sixteen decode in-process and through Ray (the runner in an
separate actor, as in the deployment), with and without lookahead. The gap is measured in the
runner: from the end of a step's last callable to that of the next one's, less the time in
callables. With --prompt-lookup it also times a copying and a free text with draft tokens.

    python benchmarks/bench_host_gap.py --model demo --model /data/synth-0.6b --json gap.json

Goals on a quiet machine, lookahead 1, through Ray: at most 3 % of the step at the 0.6B shape,
under 0.5 ms at the demo model.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Callable
from typing import Any

from qwen3_a8w8.bench.provenance import cpu_model, git_commit
from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.engine.core import EngineCore
from qwen3_a8w8.engine.engine import Engine
from qwen3_a8w8.engine.request import EngineRequest
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.engine.stats.engine_stats import EngineStats
from qwen3_a8w8.experimental import PROMPT_LOOKUP
from qwen3_a8w8.runner.model_runner import ModelRunner

PROMPT_TOKENS = 32
FACTORY = "qwen3_a8w8.runner.model_runner:ModelRunner.load"


def make_requests(count: int, num_new_tokens: int, vocab_size: int) -> list[EngineRequest]:
    """Random prompts without a common prefix."""
    rng = random.Random(0)
    sampling = SamplingParams(temperature=0, max_tokens=num_new_tokens, ignore_eos=True)
    return [
        EngineRequest(tuple(rng.randrange(vocab_size) for _ in range(PROMPT_TOKENS)), sampling)
        for _ in range(count)
    ]


def gap_of(stats: EngineStats, before: EngineStats) -> dict[str, Any]:
    """The gap per step between two snapshots."""
    after, first = stats.counters, before.counters
    num_steps = after.num_following_steps - first.num_following_steps
    gap_s = (after.host_gap_s - first.host_gap_s) / num_steps
    device_s = (after.following_device_time_s - first.following_device_time_s) / num_steps
    return {
        "num_steps": num_steps,
        "host_gap_s": gap_s,
        "device_time_s": device_s,
        "host_gap_ratio": gap_s / (gap_s + device_s),
    }


def in_process(model: str, config: EngineConfig, count: int, num_tokens: int) -> dict[str, Any]:
    """One run on an engine in this process."""
    runner = ModelRunner.load(model, config)
    engine = Engine(runner, config)
    try:
        vocab_size = runner.capabilities.vocab_size
        engine.generate(make_requests(count, 8, vocab_size))  # everything has run once
        before = engine.stats()
        engine.generate(make_requests(count, num_tokens, vocab_size))
        return gap_of(engine.stats(), before)
    finally:
        engine.close()


def through_ray(model: str, config: EngineConfig, count: int, num_tokens: int) -> dict[str, Any]:
    """The same with the runner in an actor and the batch router here."""
    import ray

    from deployments.engine.batch_router import BatchRouter
    from deployments.engine.npu_actor import RemoteNpuActor
    from deployments.engine.step_channel import StepChannel

    actor = RemoteNpuActor.options(num_cpus=0).remote(model, config, FACTORY)
    capabilities = ray.get(actor.start.remote())

    async def run() -> dict[str, Any]:
        channel = await StepChannel.connect(await actor.listen.remote())
        router = BatchRouter(EngineCore(capabilities, config), channel.send)
        channel.start(router.take)

        async def generate(num_new_tokens: int) -> None:
            requests = make_requests(count, num_new_tokens, capabilities.vocab_size)
            streams = [router.submit(request) for request in requests]
            await asyncio.gather(*(stream.whole() for stream in streams))

        await generate(8)
        before = router.stats()
        await generate(num_tokens)
        figures = gap_of(router.stats(), before)
        router.close()
        await channel.close()
        return figures

    try:
        return asyncio.run(run())
    finally:
        ray.get(actor.close.remote())
        ray.kill(actor)


def prompt_lookup(model: str, num_tokens: int) -> list[dict[str, Any]]:
    """Time per token of one sequence with and without draft tokens."""
    rng = random.Random(1)
    results = []
    for enable in ((), (PROMPT_LOOKUP,)):
        config = EngineConfig(enable=enable, enable_prefix_caching=False)
        runner = ModelRunner.load(model, config)
        engine = Engine(runner, config)
        try:
            vocab_size = runner.capabilities.vocab_size
            greedy = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
            free = SamplingParams(temperature=1.0, seed=1, max_tokens=num_tokens, ignore_eos=True)
            passage = [rng.randrange(vocab_size) for _ in range(8)]
            for text, prompt, sampling in (
                ("copying", passage * 8, greedy),
                ("free", passage, free),
            ):
                request = EngineRequest(tuple(prompt), sampling)
                engine.generate([request])
                first, begin_s = engine.stats().counters, time.perf_counter()
                engine.generate([request])
                seconds = time.perf_counter() - begin_s
                counters = engine.stats().counters
                results.append(
                    {
                        "name": "prompt_lookup",
                        "is_enabled": bool(enable),
                        "text": text,
                        "tpot_s": seconds / num_tokens,
                        "num_steps": counters.num_steps - first.num_steps,
                        "num_draft_tokens": counters.num_draft_tokens - first.num_draft_tokens,
                        "num_accepted_draft_tokens": counters.num_accepted_draft_tokens
                        - first.num_accepted_draft_tokens,
                    }
                )
        finally:
            engine.close()
    return results


def main() -> None:
    """Runs everything and prints JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", action="append", help="may be repeated; default: demo")
    parser.add_argument("--num-tokens", type=int, default=200, help="per sequence")
    parser.add_argument("--without-ray", action="store_true")
    parser.add_argument("--lookahead", type=int, action="append", help="default: 1 and 0")
    parser.add_argument("--prompt-lookup", action="store_true")
    parser.add_argument("--json", help="file to write")
    args = parser.parse_args()
    ways: list[tuple[str, Callable[..., dict[str, Any]]]] = [("in_process", in_process)]
    if not args.without_ray:
        import ray

        ray.init(
            address="local", include_dashboard=False, log_to_driver=False, logging_level="ERROR"
        )
        ways.append(("ray", through_ray))
    results: list[dict[str, Any]] = []
    for model in args.model or ["demo"]:
        for way, run in ways:
            for lookahead in args.lookahead or (1, 0):
                for count in (1, 16):
                    config = EngineConfig(
                        lookahead=lookahead,
                        enable_prefix_caching=False,
                        kv_cache_bytes=2**28,
                    )
                    figures = run(model, config, count, args.num_tokens)
                    results.append(
                        {
                            "name": "host_gap",
                            "model": model,
                            "way": way,
                            "lookahead": lookahead,
                            "batch_size": count,
                            **figures,
                        }
                    )
                    print(json.dumps(results[-1]), flush=True)
        if args.prompt_lookup:
            for result in prompt_lookup(model, args.num_tokens):
                results.append({"model": model, **result})
                print(json.dumps(results[-1]), flush=True)
    if args.json:
        from pathlib import Path

        provenance = {"commit": git_commit(Path(__file__).parent), "cpu": cpu_model()}
        text = json.dumps({"provenance": provenance, "machine": {}, "results": results}, indent=1)
        Path(args.json).write_text(text + "\n")


if __name__ == "__main__":
    main()
