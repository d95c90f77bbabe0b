"""The engine on a bfloat16 cache: sizes, closeness to the reference, and one answer."""

import pytest
import torch

from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.errors import ConfigError
from qwen3_a8w8.kernels.cpu.backend import CpuBackend
from qwen3_a8w8.kernels.reference import ReferenceBackend
from qwen3_a8w8.llm import LLM
from qwen3_a8w8.runner.sizing import kv_block_bytes
from tests.support.runners import all_logits, make_runner

IDS = torch.randint(0, 512, (300,), generator=torch.Generator().manual_seed(4)).tolist()


def test_cache_holds_two_bytes_per_element_and_no_scales(random_model):
    runner = make_runner(random_model, CpuBackend(), num_kv_blocks=9, kv_cache_dtype="bf16")
    sizes = {name: tensor.num_bytes for name, tensor in runner.device.cache.items()}
    values = 2 * 9 * 2 * 16 * 128 * 2  # layers, blocks, KV heads, tokens, head_dim, bytes
    assert sizes == {"k_cache": values, "v_cache": values, "k_scale": 0, "v_scale": 0}
    assert sum(sizes.values()) == 9 * kv_block_bytes(runner.model, 16, is_bf16=True)
    assert runner.capabilities.description["flags"] == "bf16_kv_cache"
    runner.close()


def test_logits_equal_the_reference_and_differ_from_int8(random_model):
    found = {}
    for name, backend, dtype in (
        ("cpu", CpuBackend, "bf16"),
        ("reference", ReferenceBackend, "bf16"),
        ("int8", CpuBackend, "int8"),
    ):
        runner = make_runner(random_model, backend(), kv_cache_dtype=dtype)
        found[name] = all_logits(runner, IDS[:60])
        runner.close()
    scale = found["reference"].norm()
    assert (found["cpu"] - found["reference"]).norm() < 1e-2 * scale
    assert 1e-3 * scale < (found["int8"] - found["cpu"]).norm() < 5e-2 * scale


def test_an_answer_is_the_same_in_a_batch_in_chunks_from_the_cache_and_after_preemption(
    random_model,
):
    sampling = SamplingParams(temperature=1.0, seed=3, max_tokens=40, logprobs=0, ignore_eos=True)
    prompts = [IDS[i : i + 20 + 13 * i] for i in range(16)]
    settings = {"kv_cache_dtype": "bf16", "block_size": 16, "max_model_len": 320}

    def answers(outputs):
        return [
            (out.token_ids, tuple(entry.sampled.logprob for entry in out.logprobs))
            for out in outputs
        ]

    with LLM(str(random_model), num_kv_blocks=400, **settings) as llm:
        alone = answers(llm.generate([prompt], sampling)[0] for prompt in prompts)
        again = llm.generate_batch(prompts, sampling)
        assert any(out.num_cached_tokens for out in again)
        assert answers(again) == alone
    # 41 blocks hold some 3 of the longest: the others wait, or are preempted and recomputed.
    with LLM(str(random_model), num_kv_blocks=41, prefill_chunk_tokens=16, **settings) as llm:
        assert answers(llm.generate(prompts, sampling)) == alone
        assert llm.stats().counters.num_preemptions > 0


def test_setting_and_flag_mean_the_same_and_others_are_refused():
    assert EngineConfig(kv_cache_dtype="bf16").active_flags == ("bf16_kv_cache",)
    assert EngineConfig(enable=("bf16_kv_cache",)).has_bf16_kv_cache
    assert EngineConfig(enable=("bf16_kv_cache",), kv_cache_dtype="bf16").active_flags == (
        "bf16_kv_cache",
    )
    assert not EngineConfig().has_bf16_kv_cache
    with pytest.raises(ConfigError, match="one of int8, bf16"):
        EngineConfig(kv_cache_dtype="fp8")
