"""The engine core: admission, scheduling, ends and failures, one case at a time."""

from dataclasses import replace

import pytest

from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.engine.core import EngineCore
from qwen3_a8w8.engine.plan import SampledToken, StepResult
from qwen3_a8w8.engine.request import EngineRequest, derive_seed
from qwen3_a8w8.engine.sampling_params import MAX_SEED, SamplingParams
from qwen3_a8w8.errors import (
    CapacityError,
    ConfigError,
    ContextLengthError,
    EngineDeadError,
    InvalidRequestError,
    UnsupportedBatchSizeError,
)
from tests.fakes import EOS, FakeRunner, expected_outputs, make_capabilities


def make_core(config=None, **capabilities):
    return EngineCore(
        make_capabilities(**capabilities), config or EngineConfig(lookahead=0), draw_seed=lambda: 77
    )


def make_request(length=5, first=10, **sampling):
    sampling = {"seed": 1, "max_tokens": 4, "ignore_eos": True} | sampling
    return EngineRequest(tuple(range(first, first + length)), SamplingParams(**sampling))


def run(core, runner=None, max_steps=1000):
    """Plain loop to the end; returns the events by sequence."""
    runner = runner or FakeRunner(core.capabilities)
    events = {}
    for _ in range(max_steps):
        plan = core.plan_step()
        if plan is None:
            return events
        for event in core.complete_step(runner.execute(plan)):
            events.setdefault(event.seq_id, []).append(event)
    raise AssertionError("still busy")


def result_of(plan, token_id):
    """A result in which every sample of the plan is `token_id`."""
    chunks = [(c.seq_id, c.start + c.num_tokens) for c in plan.prefill if c.is_sampled]
    rows = [(r.seq_id, r.position + 1) for r in plan.decode.rows] if plan.decode else []
    samples = tuple(SampledToken(seq_id, pos, token_id) for seq_id, pos in chunks + rows)
    return StepResult(plan.step_id, samples, 0.0)


# --- admission -----------------------------------------------------------------------------------


def test_empty_prompt_is_refused():
    with pytest.raises(InvalidRequestError, match=r"prompt has 0 tokens") as caught:
        make_core().add(EngineRequest((), SamplingParams()))
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("token_id", [-1, 1000, True, 1.5])
def test_prompt_with_an_id_that_is_no_token_is_refused(token_id):
    with pytest.raises(InvalidRequestError, match=r"prompt\[1\]") as caught:
        make_core().add(EngineRequest((3, token_id), SamplingParams()))
    assert caught.value.param == "prompt"


def test_logit_bias_outside_vocabulary_is_refused():
    with pytest.raises(InvalidRequestError, match="token 1000") as caught:
        make_core().add(make_request(logit_bias={1000: 1.0}))
    assert caught.value.param == "logit_bias"


def test_prompt_that_fills_the_context_is_refused_with_numbers():
    with pytest.raises(ContextLengthError, match=r"prompt has 128 tokens.*128 tokens fit"):
        make_core().add(make_request(128))
    make_core().add(make_request(127))


def test_prompt_above_the_cache_is_refused_and_names_num_kv_blocks():
    core = make_core(num_kv_blocks=6)
    with pytest.raises(ContextLengthError, match=r"5 blocks of 4 tokens.*raise num_kv_blocks"):
        core.add(make_request(20))
    assert core.num_live == 0


def test_prompt_refused_does_not_block_the_next():
    core = make_core(num_kv_blocks=6)
    with pytest.raises(ContextLengthError):
        core.add(make_request(21))
    (seq_id,) = core.add(make_request(5))
    assert run(core)[seq_id][-1].finish_reason == "length"


@pytest.mark.parametrize(("asked", "is_clamped"), [(None, False), (500, True)])
def test_max_tokens_is_clamped_to_the_room_left(asked, is_clamped):
    core = make_core()
    (seq_id,) = core.add(make_request(100, max_tokens=asked))
    seq = core.sequence(seq_id)
    assert (seq.max_tokens, seq.is_clamped) == (28, is_clamped)
    assert sum(len(event.token_ids) for event in run(core)[seq_id]) == 28


def test_queue_full_raises_capacity_error_and_adds_nothing():
    core = make_core(EngineConfig(lookahead=0, max_running_requests=1, max_queued_requests=2))
    core.add(make_request())
    core.plan_step()
    core.add(make_request())
    with pytest.raises(CapacityError, match="2 sequences are running or waiting and 2 more") as e:
        core.add(make_request(n=2))
    assert e.value.retry_after_s >= 1.0
    assert core.num_live == 2
    core.add(make_request())
    assert core.room() == 0


def test_capabilities_without_step_times_are_refused():
    with pytest.raises(ConfigError, match="batch size 16"):
        make_core(decode_step_s={1: 0.1})


def test_request_without_seed_gets_a_drawn_one():
    core = make_core()
    (seq_id,) = core.add(make_request(seed=None))
    assert core.sequence(seq_id).sampling.seed == 77


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


# --- ends ----------------------------------------------------------------------------------------


def test_eos_ends_with_stop_and_is_part_of_the_ids():
    core = make_core()
    core.add(make_request(ignore_eos=False))
    (event,) = core.complete_step(result_of(core.plan_step(), EOS))
    assert (event.token_ids, event.finish_reason, event.stop_token_id) == ((EOS,), "stop", EOS)
    assert core.num_live == 0


def test_eos_is_an_ordinary_token_with_ignore_eos():
    core = make_core()
    core.add(make_request())
    (event,) = core.complete_step(result_of(core.plan_step(), EOS))
    assert (event.finish_reason, event.stop_token_id) == (None, None)


def test_stop_token_id_ends_with_stop():
    core = make_core()
    core.add(make_request(stop_token_ids=(40,)))
    (event,) = core.complete_step(result_of(core.plan_step(), 40))
    assert (event.finish_reason, event.stop_token_id) == ("stop", 40)


def test_stop_tokens_before_min_tokens_are_named_to_the_runner_and_do_not_end():
    core = make_core()
    core.add(make_request(ignore_eos=False, stop_token_ids=(40,), min_tokens=1))
    plan = core.plan_step()
    assert plan.start[0].stop_token_ids == (EOS, 40)
    (event,) = core.complete_step(result_of(plan, 40))
    assert event.finish_reason is None
    (event,) = core.complete_step(result_of(core.plan_step(), 40))
    assert event.finish_reason == "stop"


def test_max_tokens_one_ends_after_prefill_without_decode():
    core = make_core(EngineConfig(lookahead=1))
    (seq_id,) = core.add(make_request(max_tokens=1))
    plan = core.plan_step()
    assert core.plan_step() is None  # known to end by length
    (event,) = core.complete_step(FakeRunner(core.capabilities).execute(plan))
    assert event.finish_reason == "length"
    assert core.plan_step().release == (seq_id,)


def test_lookahead_row_of_a_stopped_sequence_is_discarded():
    core = make_core(EngineConfig(lookahead=1))
    core.add(make_request(ignore_eos=False))
    first, second = core.plan_step(), core.plan_step()
    assert core.plan_step() is None
    (event,) = core.complete_step(result_of(first, EOS))
    assert event.finish_reason == "stop"
    assert core.stats().num_blocks_in_use == 0
    assert core.complete_step(result_of(second, 9)) == []


def test_abort_waiting_sequence_tells_the_runner_nothing():
    core = make_core()
    (seq_id,) = core.add(make_request())
    assert core.abort(seq_id).finish_reason == "abort"
    assert core.abort(seq_id) is None
    assert core.plan_step() is None


def test_abort_with_step_in_flight_frees_blocks_and_drops_the_sample():
    core = make_core()
    (seq_id,) = core.add(make_request())
    plan = core.plan_step()
    assert core.stats().num_blocks_in_use == 2
    core.abort(seq_id)
    assert core.stats().num_blocks_in_use == 0
    assert core.complete_step(result_of(plan, 9)) == []
    plan = core.plan_step()
    assert (plan.release, plan.prefill, plan.decode) == ((seq_id,), (), None)
    core.complete_step(result_of(plan, 9))
    assert core.plan_step() is None


def test_abort_for_a_stop_string_ends_with_stop():
    core = make_core()
    (seq_id,) = core.add(make_request())
    assert core.abort(seq_id, "stop").finish_reason == "stop"
    assert core.stats().num_finished == {"stop": 1}


def test_resumed_output_counts_towards_max_tokens():
    core = make_core()
    (whole,) = expected_outputs(make_request(), core.capabilities)
    request = make_request()
    resumed = EngineRequest(request.prompt_token_ids, request.sampling, tuple(whole[:3]))
    (seq_id,) = core.add(resumed)
    (event,) = run(core)[seq_id]
    assert (event.token_ids, event.finish_reason) == ((whole[3],), "length")


def test_resumed_output_with_nothing_left_is_refused():
    request = make_request()
    with pytest.raises(InvalidRequestError, match="4 tokens of at most 4"):
        make_core().add(EngineRequest(request.prompt_token_ids, request.sampling, (1, 2, 3, 4)))


def test_resumed_output_with_several_answers_is_refused():
    request = make_request(n=2)
    with pytest.raises(InvalidRequestError, match="n is 2"):
        make_core().add(EngineRequest(request.prompt_token_ids, request.sampling, (1,)))


# --- scheduling ----------------------------------------------------------------------------------


def test_long_prompt_is_cut_into_chunks():
    core = make_core()
    core.add(make_request(70))
    runner = FakeRunner(core.capabilities)
    run(core, runner)
    chunks = [(c.start, c.num_tokens, c.is_sampled) for p in runner.plans for c in p.prefill]
    assert chunks == [(0, 32, False), (32, 32, False), (64, 6, True)]


def test_short_prompts_share_a_prefill_dispatch():
    core = make_core()
    for i in range(4):
        core.add(make_request(10, first=20 * i + 10))
    plan = core.plan_step()
    assert [(c.seq_id, c.num_tokens) for c in plan.prefill] == [(0, 10), (1, 10), (2, 10), (3, 2)]


def test_prefill_dispatch_holds_at_most_max_prefill_seqs_chunks():
    core = make_core(max_prefill_seqs=2)
    for i in range(4):
        core.add(make_request(3, first=20 * i + 10))
    assert [c.seq_id for c in core.plan_step().prefill] == [0, 1]


def test_running_row_decodes_beside_the_prefill_of_another():
    core = make_core()
    core.add(make_request())
    core.complete_step(result_of(core.plan_step(), 9))
    core.add(make_request(60, first=200))
    plan = core.plan_step()
    assert [c.seq_id for c in plan.prefill] == [1]
    assert [r.seq_id for r in plan.decode.rows] == [0]


def test_more_than_max_running_wait_in_order():
    core = make_core(EngineConfig(lookahead=0, max_running_requests=2))
    for i in range(3):
        core.add(make_request(first=20 * i + 10))
    assert [s.seq_id for s in core.plan_step().start] == [0, 1]
    assert (core.stats().num_running, core.stats().num_waiting) == (2, 1)
    assert core.stats().last_decision.blocked == "needs 1 running places, 0 are free"


def test_stats_count_batches_and_rows():
    core = make_core()
    for i in range(5):
        core.add(make_request(3, first=20 * i + 10, max_tokens=3))
    run(core)
    stats = core.stats()
    assert stats.counters.decode_batches == {16: 2}
    assert stats.decode_fill_ratio == 10 / 32
    assert stats.num_finished == {"length": 5}
    assert (stats.num_blocks_in_use, stats.num_blocks_free, stats.num_active_rows) == (0, 64, 0)
    assert stats.last_decision.decode_reason == "5 ready, one token each: B1 0.05 s, B16 0.04 s"


def test_preemption_takes_the_newest_and_changes_no_token():
    core = make_core(num_kv_blocks=9, decode_step_s={1: 0.01, 16: 0.01})
    requests = [make_request(12, first=100 * i + 10, max_tokens=12) for i in range(2)]
    sequences = [core.sequence(*core.add(request)) for request in requests]
    events = run(core)
    assert [seq.num_preemptions for seq in sequences] == [0, 1]
    for seq_id, request in enumerate(requests):
        got = [t for event in events[seq_id] for t in event.token_ids]
        assert [got] == expected_outputs(request, core.capabilities)
    assert core.stats().counters.num_preemptions == 1
    assert core.stats().num_blocks_in_use == 0


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


# --- explicit batches ----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 2, 8, 15, 17])
def test_batch_of_another_size_is_refused(size):
    core = make_core()
    with pytest.raises(UnsupportedBatchSizeError, match=f"{size} prompts.*1 or 16") as caught:
        core.add_batch([make_request()] * size)
    assert (caught.value.code, caught.value.param) == ("unsupported_batch_size", "prompts")
    assert core.num_live == 0


def test_batch_of_one_decodes_in_b1():
    core = make_core()
    assert core.add_batch([make_request()]) == [0]
    run(core)
    assert core.stats().counters.decode_batches == {1: 3}


def test_batch_of_sixteen_decodes_in_b16_alone_until_the_last_row_ends():
    core = make_core(num_kv_blocks=200)
    runner = FakeRunner(core.capabilities)
    core.add(make_request(max_tokens=6))
    batch = [make_request(3 + i, first=30 * i + 10, max_tokens=2 + i % 3) for i in range(16)]
    seq_ids = core.add_batch(batch)
    core.add(make_request(first=600))
    events = run(core, runner)
    rows = [
        (plan.decode.batch_size, [row.seq_id for row in plan.decode.rows])
        for plan in runner.plans
        if plan.decode
    ]
    # The first ends by itself; the batch needs all 16 places; the last one comes in beside it.
    assert [r for r in rows if set(r[1]) & set(seq_ids)] == [
        (16, seq_ids),
        (16, [i for i in seq_ids if (i - 1) % 3 >= 1]),
        (16, [i for i in seq_ids if (i - 1) % 3 == 2]),
    ]
    assert rows[:5] == [(1, [0])] * 5
    for seq_id, request in zip(seq_ids, batch, strict=True):
        got = [t for event in events[seq_id] for t in event.token_ids]
        assert [got] == expected_outputs(request, core.capabilities)
    assert core.num_live == 0


def test_batch_that_does_not_fit_the_cache_at_once_is_refused():
    with pytest.raises(ContextLengthError, match=r"16 prompts need 48 KV blocks.*cache has 40"):
        make_core(num_kv_blocks=41).add_batch([make_request(10)] * 16)


def test_batch_outputs_are_clamped_to_what_the_cache_holds_to_the_end():
    core = make_core(num_kv_blocks=65)
    seq_ids = core.add_batch([make_request(10, max_tokens=100)] * 16)
    # 64 blocks for 16 rows are 4 each, so 16 tokens, of which 10 are prompt.
    assert {core.sequence(i).max_tokens for i in seq_ids} == {6}
    run(core)
    assert core.stats().counters.num_preemptions == 0


def test_batch_with_several_answers_is_refused():
    with pytest.raises(InvalidRequestError, match="n is 2"):
        make_core().add_batch([make_request(n=2)] * 16)


def test_batch_larger_than_max_running_is_refused():
    core = make_core(EngineConfig(max_running_requests=8))
    with pytest.raises(UnsupportedBatchSizeError, match="with 1 rows"):
        core.add_batch([make_request()] * 16)


# --- failures ------------------------------------------------------------------------------------


def test_fail_all_ends_every_sequence_once_and_refuses_new_ones():
    core = make_core()
    core.add(make_request())
    core.plan_step()
    core.add(make_request(n=2))
    events = core.fail_all(OSError("device lost"))
    assert [(e.seq_id, e.finish_reason) for e in events] == [(i, "error") for i in range(3)]
    assert "OSError: device lost" in str(events[0].error)
    assert core.fail_all(OSError("again")) == []
    assert core.plan_step() is None
    assert core.stats().num_blocks_in_use == 0
    with pytest.raises(EngineDeadError, match="device lost"):
        core.add(make_request())


def test_late_result_after_failure_is_ignored():
    core = make_core()
    core.add(make_request())
    plan = core.plan_step()
    core.fail_all(EngineDeadError("actor died"))
    assert core.complete_step(result_of(plan, 9)) == []


def test_result_of_another_step_is_refused():
    core = make_core()
    core.add(make_request())
    core.plan_step()
    with pytest.raises(EngineDeadError, match="result of step 5, expected that of step 0"):
        core.complete_step(StepResult(5, (), 0.0))


def test_result_without_a_sample_is_refused():
    core = make_core()
    core.add(make_request())
    core.plan_step()
    with pytest.raises(EngineDeadError, match=r"samples for sequences \[\], expected \[0\]"):
        core.complete_step(StepResult(0, (), 0.0))


def test_sample_at_a_wrong_position_is_refused():
    core = make_core()
    core.add(make_request())
    core.plan_step()
    with pytest.raises(EngineDeadError, match="position 3, expected 5"):
        core.complete_step(StepResult(0, (SampledToken(0, 3, 9),), 0.0))
