"""What a request must be to get in, and what becomes of its limits."""

import pytest

from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.engine.request import EngineRequest
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.errors import CapacityError, ConfigError, ContextLengthError, InvalidRequestError
from tests.support.cores import make_core, make_request, run


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
    assert core.num_active_sequences == 0


def test_prompt_refused_does_not_block_the_next():
    core = make_core(num_kv_blocks=6)
    with pytest.raises(ContextLengthError):
        core.add(make_request(21))
    (seq_id,) = core.add(make_request(5))
    assert run(core)[seq_id][-1].finish_reason == "length"


@pytest.mark.parametrize("asked", [None, 500])
def test_max_tokens_is_clamped_to_the_room_left(asked):
    core = make_core()
    (seq_id,) = core.add(make_request(100, max_tokens=asked))
    seq = core.sequence(seq_id)
    assert seq.max_tokens == 28
    assert sum(len(event.token_ids) for event in run(core)[seq_id]) == 28


def test_queue_full_raises_capacity_error_and_adds_nothing():
    core = make_core(EngineConfig(lookahead=0, max_running_requests=1, max_queued_requests=2))
    core.add(make_request())
    core.plan_step()
    core.add(make_request())
    with pytest.raises(CapacityError, match="2 sequences are running or waiting and 2 more") as e:
        core.add(make_request(n=2))
    assert e.value.retry_after_s >= 1.0
    assert core.num_active_sequences == 2
    core.add(make_request())
    assert not core.has_room(make_request())


def test_capabilities_without_step_times_are_refused():
    with pytest.raises(ConfigError, match="batch size 16"):
        make_core(decode_step_s={1: 0.1})


def test_request_without_seed_gets_a_drawn_one():
    core = make_core()
    (seq_id,) = core.add(make_request(seed=None))
    assert core.sequence(seq_id).sampling.seed == 77
