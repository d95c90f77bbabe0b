"""Prompts that come in while others decode: chunk sizes, turns, groups of layers."""

import pytest

from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.engine.core import EngineCore
from qwen3_a8w8.engine.plan import StepResult
from qwen3_a8w8.engine.request import EngineRequest
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.engine.scheduling.prefill import MIN_TOKENS, PrefillBudget
from qwen3_a8w8.errors import ConfigError
from tests.support.fakes import FakeRunner, expected_outputs, make_capabilities


def make_request(first=10, length=5, max_tokens=4):
    sampling = SamplingParams(seed=1, max_tokens=max_tokens, ignore_eos=True)
    return EngineRequest(tuple(range(first, first + length)), sampling)


def make_core(capabilities=None, **config):
    capabilities = make_capabilities(
        **{
            "prefill_chunk_tokens": 64,
            "num_kv_blocks": 129,
            "max_model_len": 400,
            **(capabilities or {}),
        }
    )
    core = EngineCore(capabilities, EngineConfig(**{"lookahead": 0, **config}))
    runner = FakeRunner(capabilities)
    if config.get("prefill_layers_per_dispatch"):
        runner.layers_per_dispatch = config["prefill_layers_per_dispatch"]
    return core, runner


def step(core, runner):
    plan = core.plan_step()
    return plan, core.complete_step(runner.execute(plan))


# --- the budget ----------------------------------------------------------------------------------


def test_budget_without_a_measurement_or_a_bound_is_the_whole_chunk():
    assert PrefillBudget(512, 0.1, 0.0, 1.0).num_tokens(is_decoding=True) == 512
    assert PrefillBudget(512, None, 0.01, 1.0).num_tokens(is_decoding=True) == 512
    assert PrefillBudget(512, 0.1, 0.01, 1.0).num_tokens(is_decoding=False) == 512


def test_budget_is_what_the_stall_pays_for_within_its_limits():
    assert PrefillBudget(512, 1.0, 0.01, 1.0).num_tokens(is_decoding=True) == 100
    assert PrefillBudget(512, 1.0, 0.01, 0.25).num_tokens(is_decoding=True) == 400
    assert PrefillBudget(512, 1.0, 0.0001, 1.0).num_tokens(is_decoding=True) == 512
    assert PrefillBudget(512, 1.0, 10.0, 1.0).num_tokens(is_decoding=True) == MIN_TOKENS


@pytest.mark.parametrize("layer_share", [1.0, 0.2])
def test_budget_settles_where_a_chunk_takes_the_target(layer_share):
    def dispatch_s(num_tokens):  # a fixed part, as for reading weights, and one per token
        return (0.2 + 0.004 * num_tokens) * layer_share

    budget = PrefillBudget(512, 0.5 * layer_share, 0.0, layer_share)
    for _ in range(60):
        num_tokens = budget.num_tokens(is_decoding=True)
        budget.observe(num_tokens, layer_share, dispatch_s(num_tokens))
    assert dispatch_s(num_tokens) == pytest.approx(0.5 * layer_share, rel=0.03)


def test_chunks_beside_decoding_rows_follow_the_measured_speed():
    core, runner = make_core({"prefill_token_s": 0.01}, max_decode_stall_ms=200.0)
    core.add(make_request(max_tokens=50))
    step(core, runner)
    core.add(make_request(200, 300))
    plan, _ = step(core, runner)
    assert plan.decode is not None
    assert [chunk.num_tokens for chunk in plan.prefill] == [20]

    plan = core.plan_step()
    result = runner.execute(plan)  # this one took twice as long as expected
    core.complete_step(StepResult(plan.step_id, result.sampled, 0.5, prefill_time_s=0.4))
    assert core.stats().prefill_token_s == pytest.approx(0.015)
    assert [chunk.num_tokens for chunk in core.plan_step().prefill] == [MIN_TOKENS]


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), "1", True])
def test_stall_that_is_no_time_is_refused(value):
    with pytest.raises(ConfigError, match="max_decode_stall_ms is"):
        EngineConfig(max_decode_stall_ms=value)


# --- turns ---------------------------------------------------------------------------------------


def test_rows_that_take_turns_all_decode_between_two_chunks():
    # Three rows, one at a time, because B16 is expensive.
    core, runner = make_core({"decode_step_s": {1: 0.01, 16: 9.0}})
    for i in range(3):
        core.add(make_request(20 * i, max_tokens=30))
    step(core, runner)
    core.add(make_request(200, 190))
    plans = [step(core, runner)[0] for _ in range(9)]
    assert [len(plan.prefill) for plan in plans] == [1, 0, 0, 1, 0, 0, 1, 0, 0]
    assert [plan.decode.rows[0].seq_id for plan in plans[:3]] == [0, 1, 2]


def test_rows_that_decode_together_let_every_step_have_a_chunk():
    core, runner = make_core()
    for i in range(5):
        core.add(make_request(20 * i, max_tokens=30))
    step(core, runner)
    core.add(make_request(200, 190))
    plans = [step(core, runner)[0] for _ in range(3)]
    assert [len(plan.prefill) for plan in plans] == [1, 1, 1]
    assert all(len(plan.decode.rows) == 5 for plan in plans)


# --- groups of layers ----------------------------------------------------------------------------


def test_prefill_goes_through_groups_of_layers_with_decode_steps_between():
    core, runner = make_core(
        {"num_layers": 5, "decode_step_s": {1: 0.01, 16: 0.01}}, prefill_layers_per_dispatch=2
    )
    core.add(make_request(max_tokens=30))
    for _ in range(3):
        step(core, runner)
    core.add(make_request(200, 40))
    plans, events = zip(*(step(core, runner) for _ in range(4)), strict=True)
    assert [plan.prefill_layers for plan in plans] == [(0, 2), (2, 4), (4, 5), None]
    assert len({plan.prefill for plan in plans[:3]}) == 1
    assert [len(plan.decode.rows) for plan in plans] == [1, 1, 1, 2]
    assert [{event.seq_id for event in step_events} for step_events in events] == [
        {0},
        {0},
        {0, 1},
        {0, 1},
    ]
    assert core.stats().counters.num_prefill_tokens == 45


@pytest.mark.parametrize("lookahead", [0, 1])
def test_abort_between_groups_of_layers_drops_the_rest_of_them(lookahead):
    core, runner = make_core({"num_layers": 8}, prefill_layers_per_dispatch=1, lookahead=lookahead)
    core.add_batch([make_request(length=30)])
    for _ in range(3):
        step(core, runner)
    assert core.abort(0).finish_reason == "abort"
    assert core.abort(0) is None
    assert core.stats().num_blocks_in_use == 0
    plan, events = step(core, runner)
    assert (plan.prefill, plan.release, events) == ((), (0,), [])
    assert core.plan_step() is None
    assert runner.known == {}


def test_abort_of_one_packed_prompt_leaves_the_others_on_their_way():
    core, runner = make_core({"num_layers": 3}, prefill_layers_per_dispatch=1)
    requests = [make_request(20 * i) for i in range(3)]
    for request in requests:
        core.add(request)
    step(core, runner)
    core.abort(1)
    events = []
    while plan := core.plan_step():
        events += core.complete_step(runner.execute(plan))
    assert [c.seq_id for c in runner.plans[1].prefill] == [0, 2]
    assert runner.plans[1].prefill_layers == (1, 2)
    for seq_id in (0, 2):
        tokens = [t for e in events if e.seq_id == seq_id for t in e.token_ids]
        assert [tokens] == expected_outputs(requests[seq_id], core.capabilities)


def test_groups_as_large_as_the_model_are_one_dispatch():
    core, _ = make_core({"num_layers": 4}, prefill_layers_per_dispatch=9)
    core.add(make_request())
    assert core.plan_step().prefill_layers is None


# --- what the decision and the counters say ------------------------------------------------------


def test_host_gap_counts_steps_that_follow_others_without_a_pause():
    core, runner = make_core()
    core.add(make_request(max_tokens=3))
    for _ in range(2):  # the second request comes after a pause
        while plan := core.plan_step():
            result = runner.execute(plan)
            core.complete_step(StepResult(plan.step_id, result.sampled, 0.9, idle_s=0.1))
        core.add(make_request(max_tokens=2))
    counters = core.stats().counters
    # Decode steps and the one that releases the first sequence; not the first of each.
    assert counters.num_following_steps == 3
    assert counters.host_gap_s == pytest.approx(0.3)
    assert counters.following_device_time_s == pytest.approx(2.7)
