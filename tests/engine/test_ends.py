"""How sequences end: stop tokens, lengths, aborts; and outputs that are resumed."""

import pytest

from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.engine.request import EngineRequest
from qwen3_a8w8.errors import InvalidRequestError
from tests.support.cores import make_core, make_request, result_of, run
from tests.support.fakes import EOS, FakeRunner, expected_outputs


def test_eos_ends_with_stop_and_is_part_of_the_ids():
    core = make_core()
    core.add(make_request(ignore_eos=False))
    (event,) = core.complete_step(result_of(core.plan_step(), EOS))
    assert (event.token_ids, event.finish_reason, event.stop_token_id) == ((EOS,), "stop", EOS)
    assert core.num_active_sequences == 0


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


def test_abort_waiting_sequence_sends_nothing_to_the_runner():
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
