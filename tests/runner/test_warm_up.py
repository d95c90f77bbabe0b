"""The first dispatches: they harm nobody, don't take long, and tell what will be needed."""

import math

import pytest

from qwen3_a8w8.engine.plan import PrefillChunk, SequenceStart
from qwen3_a8w8.kernels.cpu.backend import CpuBackend
from qwen3_a8w8.runner import model_runner
from qwen3_a8w8.runner import warm_up as module
from qwen3_a8w8.runner.sizing import kv_block_bytes
from qwen3_a8w8.runner.warm_up import MAX_PREFILL_TOKENS, MAX_STEPS, warm_up
from tests.support.runners import GREEDY, Sequences, make_runner

PAGE_BYTES = 4096


def test_warm_up_writes_nothing_but_the_scratch_block(runner):
    for tensor in runner.device.cache.values():
        tensor.to_continuous_tensor().zero_()
    warm_up(runner.device)
    for tensor in runner.device.cache.values():
        assert not tensor.to_continuous_tensor()[:, 1:].any()
    assert runner.device.cache["k_scale"].to_continuous_tensor()[:, 0].any()


@pytest.mark.parametrize(("enough_s", "num_steps"), [(0.0, 1), (math.inf, MAX_STEPS)])
def test_each_size_is_timed_until_it_is_enough(runner, monkeypatch, enough_s, num_steps):
    steps = []
    run_decode = runner.device.run_decode
    monkeypatch.setattr(runner.device, "run_decode", lambda d: (steps.append(d), run_decode(d)))
    monkeypatch.setattr(module, "ENOUGH_S", enough_s)
    warm = warm_up(runner.device)
    sizes = [runner.device.decode_dispatch(size) for size in (1, 16)]
    assert steps == [dispatch for dispatch in sizes for _ in range(num_steps)]
    assert warm.decode_step_s.keys() == {1, 16}
    assert min(warm.prefill_token_s, *warm.decode_step_s.values()) > 0.0


@pytest.mark.parametrize("layers_per_dispatch", [None, 1])
@pytest.mark.parametrize("num_chunk_tokens", [MAX_PREFILL_TOKENS // 2, 200, 512])
def test_scratch_of_the_largest_chunk_is_foretold_and_left_free(
    random_model, monkeypatch, num_chunk_tokens, layers_per_dispatch
):
    free_bytes, growth_bytes = 64 << 20, []

    def spy(device):
        warm = warm_up(device)
        growth_bytes.append(warm.arena_growth_bytes)
        return warm

    monkeypatch.setattr(model_runner, "free_host_memory_bytes", lambda: free_bytes)
    monkeypatch.setattr(model_runner, "warm_up", spy)
    monkeypatch.setattr(module, "ENOUGH_S", 0.0)  # as if a whole chunk took long
    runner = make_runner(
        random_model,
        CpuBackend(),
        num_kv_blocks=None,
        kv_memory_fraction=0.5,
        prefill_chunk_tokens=num_chunk_tokens,
        prefill_layers_per_dispatch=layers_per_dispatch,
    )
    block_bytes = kv_block_bytes(runner.model, 16)
    num_blocks = (free_bytes - growth_bytes[0]) // 2 // block_bytes
    before = runner.device.worker.arena_bytes
    run_whole_chunk(runner, num_chunk_tokens)
    grown = runner.device.worker.arena_bytes - before
    runner.close()
    assert runner.capabilities.num_kv_blocks == num_blocks
    assert (grown > 0) == (num_chunk_tokens > MAX_PREFILL_TOKENS)
    # A handful of arenas, each rounded up to a page before it is scaled.
    slack = 5 * PAGE_BYTES * num_chunk_tokens // MAX_PREFILL_TOKENS
    assert grown <= growth_bytes[0] <= grown + slack


@pytest.mark.parametrize("layers_per_dispatch", [None, 1])
def test_quick_model_has_all_scratch_before_the_first_request(
    random_model, monkeypatch, layers_per_dispatch
):
    monkeypatch.setattr(module, "ENOUGH_S", math.inf)  # quick on every machine
    runner = make_runner(
        random_model,
        CpuBackend(),
        num_kv_blocks=64,
        prefill_chunk_tokens=200,
        prefill_layers_per_dispatch=layers_per_dispatch,
    )
    before = runner.device.worker.arena_bytes
    run_whole_chunk(runner, 200)
    assert runner.device.worker.arena_bytes == before
    runner.close()


def run_whole_chunk(runner, num_tokens):
    """Prefills a chunk of full size, all layers, in the way of the runner's configuration."""
    sequences = Sequences(runner)
    prompt = [i % 512 for i in range(num_tokens)]
    layered = runner.device.layered
    if layered is None:
        sequences.start(0, prompt, room=0)
        return
    blocks = tuple(range(1, 1 + -(-num_tokens // 16)))
    chunk = PrefillChunk(0, 0, num_tokens, blocks, is_sampled=True)
    start = (SequenceStart(0, tuple(prompt), (), GREEDY),)
    for group in layered.groups:
        sequences.execute(start=start, prefill=(chunk,), prefill_layers=group)
        start = ()
