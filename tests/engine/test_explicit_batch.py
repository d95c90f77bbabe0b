"""Batches that a caller has asked for: admitted whole, decoded alone."""

import pytest

from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.errors import ContextLengthError, InvalidRequestError, UnsupportedBatchSizeError
from tests.support.cores import make_core, make_request, run
from tests.support.fakes import FakeRunner, expected_outputs


@pytest.mark.parametrize("size", [0, 2, 8, 15, 17])
def test_batch_of_another_size_is_refused(size):
    core = make_core()
    with pytest.raises(UnsupportedBatchSizeError, match=f"{size} prompts.*1 or 16") as caught:
        core.add_batch([make_request()] * size)
    assert (caught.value.code, caught.value.param) == ("unsupported_batch_size", "prompts")
    assert core.num_active_sequences == 0


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
    assert core.num_active_sequences == 0


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
