"""One answer for every schedule, on a real model: tokens and log-probabilities, bit for bit."""

import random
from collections import deque
from dataclasses import replace

import pytest

from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.engine.core import EngineCore
from qwen3_a8w8.engine.request import EngineRequest
from qwen3_a8w8.engine.sampling_params import SamplingParams, ThinkingLimit
from qwen3_a8w8.experimental import PROMPT_LOOKUP
from qwen3_a8w8.kernels.cpu.backend import CpuBackend
from tests.support.checkpoints import make_random_qwen3
from tests.support.runners import make_runner
from tests.support.text_fixtures import write_tokenizer_files

LOOKUP = (PROMPT_LOOKUP,)
CHEAP_B16 = {1: 0.001, 16: 0.001}
PREFIX = [(17 * i) % 500 for i in range(40)]
PHRASE = [5, 6, 7, 8, 9, 10]

SCHEMA = {
    "type": "object",
    "properties": {"fox": {"type": "array", "items": {"type": "boolean"}, "minItems": 2}},
    "required": ["fox"],
}

SAMPLINGS = [
    {"temperature": 0},
    {"temperature": 0, "repetition_penalty": 1.3, "frequency_penalty": 0.5},
    {"temperature": 0, "min_tokens": 9, "stop_token_ids": tuple(range(0, 512, 3))},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.8},
    {"temperature": 1.0, "min_p": 0.1, "presence_penalty": 1.0, "logit_bias": {3: 5.0, 4: -9.0}},
    {"temperature": 0.01, "stop_token_ids": (11, 12, 13)},
    {
        "temperature": 1.0,
        "repetition_penalty": 1.2,
        "thinking_limit": ThinkingLimit(num_tokens=4, end_ids=(7, 8, 9), close_id=8),
    },
    {"temperature": 1.0, "structured": {"json": SCHEMA}, "min_tokens": 12},
    {"temperature": 1.0, "structured": {"regex": "(ab|[0-9]{2}){4,9}"}, "top_k": 20},
    {"temperature": 1.0, "structured": {"json_object": True, "thinking": "optional"}},
]


def make_requests():
    rng = random.Random(1)
    requests = []
    for i, sampling in enumerate(SAMPLINGS * 2):
        own = [rng.randrange(500) for _ in range(rng.randint(1, 30))]
        prompt = (PREFIX + own, own, PHRASE * 4)[i % 3]
        requests.append(
            EngineRequest(
                tuple(prompt),
                SamplingParams(
                    seed=i,
                    max_tokens=rng.choice([9, 20, 50]),
                    logprobs=3,
                    prompt_logprobs=2 if i % 4 == 0 else None,
                    **sampling,
                ),
                priority=rng.randint(0, 2),
                cache_salt=rng.choice([None, "other"]),
            )
        )
    return requests


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    path = tmp_path_factory.mktemp("three-layers")
    make_random_qwen3(path, layers=3, seed=5)
    write_tokenizer_files(path)
    runner = make_runner(path, CpuBackend(), prefill_layers_per_dispatch=2, enable=LOOKUP)
    yield runner
    runner.close()


def run(runner, requests, rng=None, aborts=(), **config):
    """Runs requests through a core that comes and goes; (tokens, logprobs) by request."""
    rng = rng or random.Random(0)
    limits = {key: config.pop(key) for key in ("num_kv_blocks", "decode_step_s") if key in config}
    capabilities = replace(runner.capabilities, **limits)
    # The prefill callables were compiled once; a smaller chunk is the scheduler's choice.
    chunk = config.pop("prefill_chunk_tokens", capabilities.prefill_chunk_tokens)
    core = EngineCore(replace(capabilities, prefill_chunk_tokens=chunk), EngineConfig(**config))
    due, in_flight, outputs, ids = deque(requests), deque(), {}, {}
    num_steps = 0
    while True:
        if due and (rng.random() < 0.8 or not core.num_active_sequences):
            ids[len(ids)] = core.add(due.popleft())
        for at, index in aborts:
            if at == num_steps and index in ids:
                for seq_id in ids[index]:
                    core.abort(seq_id)
        num_steps += 1
        plan = core.plan_step()
        if plan is not None:
            in_flight.append(plan)
        elif not in_flight and not due:
            break
        if in_flight and (plan is None or len(in_flight) > config.get("lookahead", 1)):
            for event in core.complete_step(runner.execute(in_flight.popleft())):
                tokens, logprobs, prompt = outputs.setdefault(event.seq_id, ([], [], []))
                tokens += event.token_ids
                logprobs += event.logprobs
                prompt += [(t.position, t.token_id, t.logprobs) for t in event.prompt_tokens]
    assert core.stats().num_blocks_in_use == 0
    assert runner._sequences == {}
    run.stats = core.stats()
    return [[outputs.get(seq_id, ([], [], [])) for seq_id in ids[i]] for i in range(len(requests))]


@pytest.fixture(scope="module")
def alone(runner):
    """Each request by itself: whole prompt, one step at a time, nothing shared."""
    plain = {
        "lookahead": 0,
        "enable_prefix_caching": False,
        "max_decode_stall_ms": None,
        "max_running_requests": 1,
    }
    return [run(runner, [request], **plain)[0] for request in make_requests()]


SCHEDULES = {
    "together": {},
    "no_lookahead": {"lookahead": 0},
    "small_chunks": {"prefill_chunk_tokens": 16},
    "small_chunks_layered": {"prefill_chunk_tokens": 16, "prefill_layers_per_dispatch": 2},
    "layered": {"prefill_layers_per_dispatch": 2},
    "preempted": {"num_kv_blocks": 9, "decode_step_s": CHEAP_B16},
    "preempted_layered": {
        "num_kv_blocks": 9,
        "decode_step_s": CHEAP_B16,
        "prefill_layers_per_dispatch": 2,
    },
    "single_rows": {"decode_step_s": {1: 0.001, 16: 9.0}},
    "whole_batches": {"decode_step_s": CHEAP_B16},
    "one_after_the_other_with_drafts": {"max_running_requests": 1, "enable": LOOKUP},
    "with_drafts": {"enable": LOOKUP, "max_running_requests": 2},
    "drafts_and_everything": {
        "enable": LOOKUP,
        "max_running_requests": 3,
        "num_kv_blocks": 9,
        "prefill_chunk_tokens": 16,
        "prefill_layers_per_dispatch": 2,
    },
    "short_stalls": {"max_decode_stall_ms": 0.001, "max_running_requests": 4},
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_schedule_gives_what_a_request_gets_alone_bit_for_bit(runner, alone, name, seed):
    found = run(runner, make_requests(), random.Random(seed), **SCHEDULES[name])
    assert found == alone
    counters = run.stats.counters
    if name.startswith("preempted"):
        assert counters.num_preemptions > 0
    if name == "together":
        assert counters.num_prefix_hit_tokens > 0
    if name == "one_after_the_other_with_drafts":
        assert counters.num_accepted_draft_tokens > 10
        assert (
            counters.num_draft_tokens > counters.num_accepted_draft_tokens
        )  # wrong ones left no trace


@pytest.mark.parametrize("at", range(1, 14, 2))
@pytest.mark.parametrize("lookahead", [0, 1])
def test_aborts_at_any_step_change_nobody_elses_bits(runner, alone, at, lookahead):
    config = {"lookahead": lookahead, "prefill_layers_per_dispatch": 2, "enable": LOOKUP}
    aborts = [(at, index) for index in (0, 3, 4)] + [(at, 0)]
    found = run(runner, make_requests(), random.Random(at), aborts, **config)
    for index, (got, expected) in enumerate(zip(found, alone, strict=True)):
        for (tokens, logprobs, _), (all_tokens, all_logprobs, _) in zip(got, expected, strict=True):
            num_tokens = len(tokens) if index in (0, 3, 4) else len(all_tokens)
            assert (tokens, logprobs) == (all_tokens[:num_tokens], all_logprobs[:num_tokens])


@pytest.mark.parametrize("is_cached", [True, False])
def test_several_answers_with_shared_prompt_equal_their_own_runs(runner, is_cached):
    request = EngineRequest(
        tuple(PREFIX), SamplingParams(n=3, seed=4, temperature=1.0, max_tokens=12, logprobs=1)
    )
    plain = {"lookahead": 0, "enable_prefix_caching": False, "max_running_requests": 1}
    shared = run(runner, [request], enable_prefix_caching=is_cached)
    assert run.stats.counters.num_prefix_hit_tokens > 0
    assert shared == run(runner, [request], **plain)
