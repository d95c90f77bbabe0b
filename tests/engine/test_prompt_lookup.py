"""Draft tokens from the sequence's own text: proposed, verified, and without effect on output."""

import pytest

from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.engine.core import EngineCore
from qwen3_a8w8.engine.plan import SampledToken, StepResult
from qwen3_a8w8.engine.prompt_lookup import PromptLookup
from qwen3_a8w8.engine.request import EngineRequest
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.errors import ConfigError, EngineDeadError
from qwen3_a8w8.experimental import FLAGS, PROMPT_LOOKUP
from tests.support.fakes import COPYING_SEED, FakeRunner, expected_outputs, make_capabilities


def make_request(max_tokens=40, seed=COPYING_SEED, **sampling):
    return EngineRequest(
        (10, 11, 12), SamplingParams(seed=seed, max_tokens=max_tokens, ignore_eos=True, **sampling)
    )


def run(request, lookahead=1, enable=(PROMPT_LOOKUP,), **capabilities):
    capabilities = make_capabilities(**capabilities)
    core = EngineCore(capabilities, EngineConfig(lookahead=lookahead, enable=enable))
    runner = FakeRunner(capabilities)
    (seq_id,) = core.add(request)
    events = []
    in_flight = []
    while True:
        while plan := core.plan_step():
            in_flight.append(plan)
        if not in_flight:
            return core, events
        events += core.complete_step(runner.execute(in_flight.pop(0)))
        assert all(event.seq_id == seq_id for event in events)


@pytest.mark.parametrize(
    ("token_ids", "max_drafts", "expected"),
    [
        ([1, 2, 3, 9, 1, 2], 2, (3, 9)),
        ([1, 2, 3, 9, 1, 2], 7, (3, 9, 1, 2, 3, 9, 1)),
        ([5, 5, 5], 3, (5, 5, 5)),
        ([1, 2, 7, 1, 2, 8, 1, 2], 1, (8,)),  # the latest
        ([4, 1, 2, 7, 3, 1, 2, 8, 4, 1, 2], 1, (7,)),  # the longest
        ([1, 2, 3, 4], 3, ()),
        ([1], 3, ()),
    ],
)
def test_lookup_gives_what_followed_the_latest_longest_run(token_ids, max_drafts, expected):
    assert PromptLookup().propose(token_ids, max_drafts) == expected


def test_lookup_grown_step_by_step_equals_a_fresh_one():
    token_ids = [(i * i) % 7 for i in range(60)]
    grown = PromptLookup()
    for end in range(1, 61):
        assert grown.propose(token_ids[:end], 4) == PromptLookup().propose(token_ids[:end], 4)


@pytest.mark.parametrize("lookahead", [0, 1])
def test_repetitive_text_takes_fewer_steps_and_gives_the_same_tokens(lookahead):
    request = make_request()
    core, events = run(request, lookahead)
    tokens = [token for event in events for token in event.token_ids]
    assert [tokens] == expected_outputs(request, core.capabilities)
    counters = core.stats().counters
    assert counters.num_accepted_draft_tokens > 20
    assert counters.num_steps == 40 - counters.num_accepted_draft_tokens
    assert core.stats().num_blocks_in_use == 0


def test_without_the_flag_there_are_no_draft_tokens():
    core, _ = run(make_request(), enable=())
    assert core.stats().counters.num_draft_tokens == 0


@pytest.mark.parametrize("max_tokens", range(1, 24))
def test_length_limit_inside_accepted_draft_tokens_ends_exactly_there(max_tokens):
    request = make_request(max_tokens)
    core, events = run(request)
    tokens = [token for event in events for token in event.token_ids]
    assert [tokens] == expected_outputs(request, core.capabilities)
    assert events[-1].finish_reason == "length"


@pytest.mark.parametrize("stop", range(2, 8))
@pytest.mark.parametrize("min_tokens", [0, 12, 13, 17])
def test_stop_token_inside_accepted_draft_tokens_ends_exactly_there(stop, min_tokens):
    request = make_request(stop_token_ids=(stop,), min_tokens=min_tokens)
    core, events = run(request)
    tokens = [token for event in events for token in event.token_ids]
    assert [tokens] == expected_outputs(request, core.capabilities)
    assert (events[-1].finish_reason, events[-1].stop_token_id) == ("stop", stop)


def test_cache_full_to_the_last_block_takes_as_many_draft_tokens_as_fit():
    request = make_request(None)
    core, events = run(request, num_kv_blocks=8, block_size=4)
    tokens = [token for event in events for token in event.token_ids]
    assert [tokens] == expected_outputs(request, core.capabilities)
    assert len(tokens) == 25


def test_accepted_draft_tokens_are_published_in_the_prefix_cache():
    request = make_request()
    core, events = run(request)
    tokens = [token for event in events for token in event.token_ids]
    core.add(EngineRequest((10, 11, 12, *tokens[:37]), SamplingParams(max_tokens=1)))
    # All but those of the last step, whose ids weren't known when it was confirmed.
    assert core.plan_step().prefill[0].start == 32


def test_more_samples_than_draft_tokens_are_refused():
    core = EngineCore(make_capabilities(), EngineConfig())
    core.add(make_request())
    plan = core.plan_step()
    sampled = tuple(SampledToken(0, 3 + i, 9) for i in range(2))
    with pytest.raises(EngineDeadError, match="2 samples for sequence 0, expected at most 1"):
        core.complete_step(StepResult(plan.step_id, sampled, 0.0))


def test_unknown_flag_is_refused_with_the_known_ones():
    assert PROMPT_LOOKUP in FLAGS
    with pytest.raises(ConfigError, match=r"enable is \('warp',\), .*prompt_lookup"):
        EngineConfig(enable=("warp",))
