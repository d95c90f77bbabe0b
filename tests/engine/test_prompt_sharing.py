"""What sequences with equal prompts compute and hold once."""

from dataclasses import replace

import pytest

from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.engine.request import derive_seed
from qwen3_a8w8.engine.sampling_params import MAX_SEED
from tests.support.cores import make_core, make_request, run
from tests.support.fakes import FakeRunner, expected_outputs


def test_derived_seeds_are_distinct_and_the_first_is_the_own():
    seeds = [derive_seed(5, i) for i in range(16)]
    assert seeds[0] == 5
    assert len(set(seeds)) == 16
    assert all(0 <= seed <= MAX_SEED for seed in seeds)


@pytest.mark.parametrize("is_cached", [True, False])
def test_several_answers_share_the_computed_prompt(is_cached):
    core = make_core(EngineConfig(lookahead=0, enable_prefix_caching=is_cached))
    runner = FakeRunner(core.capabilities)
    request = make_request(21, n=4)
    seq_ids = core.add(request)
    events = run(core, runner)
    got = [[t for e in events[i] for t in e.token_ids] for i in seq_ids]
    assert got == expected_outputs(request, core.capabilities)
    assert len({tuple(tokens) for tokens in got}) == 4
    assert [events[i][-1].num_cached_tokens for i in seq_ids] == [0, 20, 20, 20]
    assert core.stats().counters.num_prefill_tokens == 21 + 3


@pytest.mark.parametrize("is_split", [True, False])
def test_several_answers_hold_their_prompts_blocks_once_without_prefix_cache(is_split):
    core = make_core(EngineConfig(lookahead=0, enable_prefix_caching=False))
    runner = FakeRunner(core.capabilities)
    if is_split:  # as the ingress sends them
        ids = [core.add(replace(make_request(21, seed=i), family="f"))[0] for i in range(4)]
    else:
        ids = core.add(make_request(21, n=4))
    held = []
    while (plan := core.plan_step()) is not None:
        core.complete_step(runner.execute(plan))
        held.append(core.pool.num_in_use)
    assert len(ids) == 4
    # 20 tokens in 5 blocks for all, the 21st and three of the output's in one block for each.
    assert max(held) == 5 + 4
    assert held[-1] == 0
    assert core.pool.num_free == core.pool.num_usable_blocks


def test_strangers_share_nothing_without_prefix_cache():
    core = make_core(EngineConfig(lookahead=0, enable_prefix_caching=False))
    core.add(make_request(21, n=2))
    core.add(make_request(21, n=2))
    core.add(make_request(21))
    core.add(replace(make_request(21), cache_salt="s"))
    events = run(core)
    assert [events[i][-1].num_cached_tokens for i in range(6)] == [0, 20, 0, 20, 0, 0]


def test_equal_prefix_is_not_computed_twice():
    core = make_core()
    request = make_request(33)
    core.add(request)
    first = run(core)
    core.add(request)
    plan = core.plan_step()
    assert [(c.start, c.num_tokens) for c in plan.prefill] == [(32, 1)]
    assert first[0][-1].num_cached_tokens == 0
    assert core.sequence(1).num_cached_tokens == 32
    assert core.stats().counters.num_prefix_hit_tokens == 32


def test_prompt_of_whole_blocks_leaves_its_last_block_to_compute():
    core = make_core()
    core.add(make_request(8))
    run(core)
    core.add(make_request(8))
    assert [(c.start, c.num_tokens) for c in core.plan_step().prefill] == [(4, 4)]


def test_prefix_caching_off_computes_everything():
    core = make_core(EngineConfig(lookahead=0, enable_prefix_caching=False))
    core.add(make_request(33))
    run(core)
    core.add(make_request(33))
    assert core.plan_step().prefill[0].start == 0
