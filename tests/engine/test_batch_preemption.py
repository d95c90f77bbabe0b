"""An explicit batch under memory pressure from older sequences."""

import pytest

from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.engine.core import EngineCore
from qwen3_a8w8.engine.request import EngineRequest
from qwen3_a8w8.engine.sampling_params import SamplingParams
from tests.support.fakes import FakeRunner, expected_outputs, make_capabilities


@pytest.mark.parametrize("num_kv_blocks", range(13, 31))
@pytest.mark.parametrize("prompt_length", [2, 5, 6, 11])
def test_batch_that_lost_a_member_waits_until_it_is_back(num_kv_blocks, prompt_length):
    capabilities = make_capabilities(
        num_kv_blocks=num_kv_blocks,
        max_model_len=50,
        decode_batch_sizes=(1, 4),
        decode_step_s={1: 0.01, 4: 0.01},
    )
    core = EngineCore(capabilities, EngineConfig(lookahead=0, enable_prefix_caching=False))
    runner = FakeRunner(capabilities)
    sampling = SamplingParams(seed=0, max_tokens=None, ignore_eos=True)
    older = EngineRequest(tuple(range(100, 100 + prompt_length)), sampling)
    core.add(older)
    core.complete_step(runner.execute(core.plan_step()))
    batch = [EngineRequest(tuple(range(10 * i, 10 * i + 5)), sampling) for i in range(1, 5)]
    members = core.add_batch(batch)
    expected = [expected_outputs(request, capabilities)[0] for request in [older, *batch]]
    for i in members:
        del expected[i][core.sequence(i).max_tokens :]

    outputs = {0: [], **{i: [] for i in members}}
    for seq_id, known in runner.known.items():
        outputs[seq_id] += known.token_ids[prompt_length:]
    live = set(members)
    while plan := core.plan_step():
        rows = {row.seq_id for row in plan.decode.rows} if plan.decode else set()
        assert rows in ({0}, live, set())
        for event in core.complete_step(runner.execute(plan)):
            outputs[event.seq_id] += event.token_ids
            if event.finish_reason:
                live.discard(event.seq_id)
    assert list(outputs.values()) == expected
    assert core.stats().num_blocks_in_use == 0
