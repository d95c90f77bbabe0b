"""The instruction path that a setting asks for."""

import pytest

from qwen3_a8w8 import LLM, SamplingParams
from qwen3_a8w8.errors import ConfigError, KernelUnavailableError
from qwen3_a8w8.kernels.cpu.backend import runnable_isas


@pytest.mark.parametrize("isa", runnable_isas())
def test_model_runs_on_the_path_asked_for(isa):
    with LLM("demo", isa=isa, num_kv_blocks=9, num_threads=1) as llm:
        assert llm.capabilities.description["isa"] == isa
        (output,) = llm.generate([[5, 6, 7]], SamplingParams(temperature=0, max_tokens=2))
    assert len(output.token_ids) == 2


def test_path_that_does_not_exist_is_refused_with_those_that_do():
    with pytest.raises(KernelUnavailableError, match=r"'vax'.*use one of \['"):
        LLM("demo", isa="vax")
    with pytest.raises(ConfigError, match="isa is ''"):
        LLM("demo", isa="")
