"""Log-probabilities of prompts, against the logits that they come from."""

import pytest
import torch

from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.engine.engine import Engine
from qwen3_a8w8.engine.request import EngineRequest
from qwen3_a8w8.engine.sampling_params import SamplingParams
from tests.support.runners import all_logits

PROMPT = [(37 * i + 5) % 500 for i in range(45)]


@pytest.mark.parametrize("bias", [{}, {7: 100.0}])
def test_prompt_logprobs_are_those_of_the_models_own_distribution(runner, bias):
    truth = torch.log_softmax(all_logits(runner, PROMPT), dim=-1)
    sampling = SamplingParams(
        seed=1, max_tokens=2, prompt_logprobs=3, logit_bias=bias, repetition_penalty=1.5
    )
    engine = Engine(runner, EngineConfig(**vars_of(runner)))
    (output,) = engine.generate([EngineRequest(tuple(PROMPT), sampling)])
    assert len(output.prompt_tokens) == len(PROMPT) - 1
    for token in output.prompt_tokens:
        expected = truth[token.position - 1]
        assert token.token_id == PROMPT[token.position]
        assert token.logprobs.logprob == pytest.approx(float(expected[token.token_id]), abs=1e-4)
        ids = [token_id for token_id, _ in token.logprobs.top]
        assert ids == expected.topk(3).indices.tolist()


def vars_of(runner):
    config = runner.config
    return {name: getattr(config, name) for name in ("block_size", "num_kv_blocks")}
