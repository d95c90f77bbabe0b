"""A runner that is lost, or gives results that don't fit its plans."""

import pytest

from qwen3_a8w8.engine.plan import SampledToken, StepResult
from qwen3_a8w8.errors import EngineDeadError
from tests.support.cores import make_core, make_request, result_of


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
    core.fail_all(EngineDeadError("actor crashed"))
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
