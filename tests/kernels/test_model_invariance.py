"""The promise of batch invariance on a whole model, bit for bit."""

import pytest
import torch

from qwen3_a8w8.kernels.cpu.backend import CpuBackend
from tests.kernels.single_op import reference
from tests.kernels.small_model import DIMS, SmallModel

LENGTHS = [1, 15, 16, 17, 100, 254, 255, 256, 257, 258, 300, 2, 3, 64, 511, 513]


def _prompt(seq, length):
    gen = torch.Generator().manual_seed(seq)
    return torch.randint(0, DIMS["VOCAB"], (length,), generator=gen).tolist()


# A linear of each kind alone, all of a fused one, and fused ones whose parts differ.
MIXED = [
    *[(0, name) for name in ("q_proj", "k_proj", "v_proj", "down_proj")],
    *[(1, name) for name in ("k_proj", "o_proj", "gate_proj")],
]


# Linears kept in floating point, and whether the cache is bfloat16.
KINDS = {"int8": ((), False), "mixed": (MIXED, False), "bf16-cache": ((), True)}


@pytest.fixture(scope="module", params=KINDS)
def model(request, backend):
    """Prefilled with one prompt of each length."""
    model = SmallModel(backend, *KINDS[request.param])
    for seq, length in enumerate(LENGTHS):
        model.prefill([(seq, 0, _prompt(seq, length))])
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_model_prefill_and_decode_match_reference(backend, kind):
    models = [SmallModel(backend, *KINDS[kind]), SmallModel(reference(), *KINDS[kind])]
    chunks = [(0, 0, _prompt(0, 40)), (1, 0, _prompt(1, 7))]
    rows = [(0, 40, 5), (1, 7, 6)]
    for run in (lambda m: m.prefill(chunks), lambda m: m.decode(rows, 16)[:2]):
        got, want = (run(m) for m in models)
        # A quantised value on a rounding boundary may fall to either side.
        assert (got - want).norm() <= 1e-2 * want.norm()


def test_model_row_decodes_the_same_in_a_batch_and_alone(model):
    rows = [(seq, length, 11 + seq) for seq, length in enumerate(LENGTHS)]
    batch = model.decode(rows, 16)
    assert torch.isfinite(batch).all()
    for i, row in enumerate(rows):
        assert torch.equal(model.decode([row], 1)[0], batch[i])
    for count in (2, 3, 7, 15):
        partial = model.decode(rows[16 - count :], 16)
        assert torch.equal(partial[:count], batch[16 - count :])
        assert partial[count:].isnan().all()


@pytest.mark.parametrize("kind", KINDS)
def test_model_prefill_whole_chunked_packed_and_decoded_give_the_same(backend, kind):
    length = 300
    prompt, other = _prompt(1, length), _prompt(2, 40)
    models = [SmallModel(backend, *KINDS[kind]) for _ in range(4)]
    whole = models[0].prefill([(0, 0, prompt)])[0]
    for start, end in ((0, 1), (1, 17), (17, 255), (255, 299)):
        # As the scheduler does it: only the last chunk wants logits.
        models[1].prefill([(0, start, prompt[start:end])], has_logits=start == 0)
    chunked = models[1].prefill([(0, 299, prompt[299:])])[0]
    packed = models[2].prefill([(5, 0, other), (0, 0, prompt), (7, 0, other[:1])])[1]
    models[3].prefill([(0, 0, prompt[:250])])
    for position in range(250, length):
        decoded = models[3].decode([(0, position, prompt[position])], 1)[0]
    assert torch.equal(chunked, whole)
    assert torch.equal(packed, whole)
    assert torch.equal(decoded, whole)
    for model in models[1:]:
        blocks = models[0].tables[0, : length // 16].long()
        for name, cache in models[0].cache.items():
            assert torch.equal(model.cache[name][:, blocks], cache[:, blocks])


def test_model_number_of_threads_changes_nothing(by_threads):
    prompt = _prompt(3, 270)
    results = []
    for backend in by_threads:
        model = SmallModel(backend)
        prefilled = model.prefill([(0, 0, prompt), (1, 0, prompt[:50])])
        decoded = model.decode([(0, 270, 1), (1, 50, 2)], 16)[:2]
        results.append(torch.cat((prefilled, decoded)))
    assert all(torch.equal(result, results[0]) for result in results)


def test_model_no_live_rows_touches_nothing(model):
    before = {name: cache.clone() for name, cache in model.cache.items()}
    assert model.decode([], 16).isnan().all()
    assert all(torch.equal(model.cache[name], before[name]) for name in before)


def test_model_idle_rows_write_nothing_into_the_cache(backend):
    model = SmallModel(backend)
    model.decode([(0, 0, 3)], 16)
    slot = model.slot(0, 0)
    for cache in model.cache.values():
        written = cache.transpose(2, 3).flatten(1, 2)  # [layers, slots, kv_heads, ...]
        touched = written.flatten(2).ne(0).any(dim=2).any(dim=0)
        assert touched.nonzero().flatten().tolist() == [slot]


def test_model_arena_grows_once_and_is_freed_by_close(backend):
    model = SmallModel(backend)
    executable = model.decode_fn._executable
    assert executable.arena_bytes == 0
    model.decode([(0, 0, 3)], 16)
    largest = executable.arena_bytes
    model.decode([(0, 1, 3)], 1)
    assert executable.arena_bytes == largest > 0
    model.decode_fn.close()
    model.decode_fn.close()
    assert executable.arena_bytes == 0
    assert torch.isfinite(model.decode([(0, 1, 3)], 1)).all()


@pytest.mark.parametrize(
    ("hidden", "num_heads", "head_dim"), [(1024, 2, 64), (2048, 4, 64), (1024, 1, 32)]
)
@pytest.mark.parametrize("has_bf16_cache", [False, True])
def test_narrow_heads_prefill_the_same_whole_and_in_chunks(
    monkeypatch, hidden, num_heads, head_dim, has_bf16_cache
):
    # q is so narrow that it would fit where the linear's activations lie, which a kernel that
    # rotates heads as it makes them still reads.
    for name, value in (
        ("HIDDEN", hidden),
        ("NUM_HEADS", num_heads),
        ("KV_HEADS", 1),
        ("HEAD_DIM", head_dim),
    ):
        monkeypatch.setitem(DIMS, name, value)
    prompt = _prompt(0, 300)
    backend = CpuBackend(num_threads=2)
    whole = SmallModel(backend, (), has_bf16_cache)
    chunked = SmallModel(backend, (), has_bf16_cache)
    want = whole.prefill([(0, 0, prompt)])[0]
    for begin in range(0, 300, 16):
        got = chunked.prefill([(0, begin, prompt[begin : begin + 16])])[0]
    assert torch.equal(got, want)
    assert torch.equal(chunked.cache["k_cache"], whole.cache["k_cache"])
