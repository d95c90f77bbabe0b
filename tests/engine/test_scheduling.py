"""What a step is composed of: chunks, rows, and who waits or is preempted."""

from qwen3_a8w8.config import EngineConfig
from tests.support.cores import make_core, make_request, result_of, run
from tests.support.fakes import FakeRunner, expected_outputs


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
