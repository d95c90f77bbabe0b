"""The NPU backend: against the reference, rows against batches, and what it refuses."""

import math

import pytest
import torch

from qwen3_a8w8.errors import KernelUnavailableError, SignatureError
from qwen3_a8w8.kernels.ops import KvCache
from tests.kernels.npu.on_device.models import (
    BLOCK_SIZE,
    KINDS,
    LENGTHS,
    MODEL_TOLERANCE,
    FixedDecode,
    next_rows,
    prefilled,
    prompt,
    small_model,
)
from tests.kernels.paged_cache import (
    CACHE_NAMES,
    random_bf16_cache,
    random_cache,
    scattered_tables,
)
from tests.kernels.single_op import reference, run_ops
from tests.kernels.small_model import SmallModel


@pytest.mark.parametrize("kind", KINDS)
def test_prefill_and_decode_are_those_of_the_reference(backend, kind):
    models = [small_model(backend, kind), small_model(reference(), kind)]
    chunks = [(0, 0, prompt(0, 40)), (1, 0, prompt(1, 7))]
    for run in (lambda m: m.prefill(chunks), lambda m: m.decode([(0, 40, 5), (1, 7, 6)], 16)[:2]):
        got, want = (run(m) for m in models)
        assert (got - want).norm() <= MODEL_TOLERANCE * want.norm()


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_decodes_the_same_alone_and_in_any_batch(backend, kind):
    model, rows = prefilled(backend, kind), next_rows()
    batch = model.decode(rows, 16)
    for index in (0, 1, 7, 15):
        assert torch.equal(model.decode([rows[index]], 1)[0], batch[index])
    for count in (2, 7, 15):
        partial = model.decode(rows[16 - count :], 16)
        assert torch.equal(partial[:count], batch[16 - count :])
        assert partial[count:].isnan().all()


@pytest.mark.parametrize("kind", KINDS)
def test_prefill_whole_chunked_packed_and_decoded_give_the_same(backend, kind):
    length, other = 70, prompt(2, 9)
    ids = prompt(1, length)
    models = [small_model(backend, kind) for _ in range(4)]
    whole = models[0].prefill([(0, 0, ids)])[0]
    for start, end in ((0, 1), (1, 33), (33, 69)):
        models[1].prefill([(0, start, ids[start:end])], has_logits=False)
    assert torch.equal(models[1].prefill([(0, 69, ids[69:])])[0], whole)
    assert torch.equal(models[2].prefill([(5, 0, other), (0, 0, ids), (7, 0, other[:1])])[1], whole)
    models[3].prefill([(0, 0, ids[:60])])
    for position in range(60, length):
        decoded = models[3].decode([(0, position, ids[position])], 1)[0]
    assert torch.equal(decoded, whole)
    for model in models[1:]:
        blocks = models[0].tables[0, : length // BLOCK_SIZE].long()
        for name, cache in models[0].cache.items():
            assert torch.equal(model.cache[name][:, blocks], cache[:, blocks])


def test_no_live_rows_touch_nothing(backend):
    model = small_model(backend)
    before = {name: cache.clone() for name, cache in model.cache.items()}
    assert model.decode([], 16).isnan().all()
    assert all(torch.equal(model.cache[name], cache) for name, cache in before.items())


def test_replayed_decode_gives_what_eager_decode_gives(backend):
    eager, replayed = prefilled(backend), prefilled(backend)
    fixed = FixedDecode(replayed)
    for step in range(3):
        rows = [(seq, length + step, 20 + seq + step) for seq, length in enumerate(LENGTHS)]
        rows = rows[: 16 - 3 * step]
        # Arguments at other addresses each time: never replayed.
        assert torch.equal(fixed.run(rows)[: len(rows)], eager.decode(rows, 16)[: len(rows)])


CACHES = {"int8": random_cache, "bf16": random_bf16_cache}


@pytest.mark.parametrize("make_cache", CACHES.values(), ids=CACHES)
@pytest.mark.parametrize("heads", [(4, 2, 128), (40, 8, 128), (2, 1, 64)], ids=str)
def test_attention_is_that_of_the_reference(backend, make_cache, heads):
    num_heads, kv_heads, head_dim = heads
    num_blocks = 16 * 12 + 1
    cache = make_cache(2, num_blocks, kv_heads, BLOCK_SIZE, head_dim, 0)
    tables = scattered_tables(16, 12, num_blocks, 0)
    q = torch.randn(16, num_heads * head_dim, generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor(LENGTHS, dtype=torch.int32)

    def fn(ops, refs):
        kv = KvCache(*(refs[name] for name in CACHE_NAMES))
        scale = 1 / math.sqrt(head_dim)
        return (ops.attention(refs["q"], kv, refs["t"], refs["n"], None, layer=1, scale=scale),)

    got, want = (
        run_ops(b, fn, {"q": q.bfloat16().float(), "n": lengths, "t": tables}, dict(cache))[0]
        for b in (backend, reference())
    )
    assert (got - want).norm() <= 6e-3 * want.norm()


def test_lengths_and_slots_that_the_ops_do_not_check_are_refused(backend):
    model = small_model(backend)
    rows = [(0, 0, 1), (1, 0, 2)]
    fixed = FixedDecode(model)
    fixed.run(rows)
    slots, lengths = fixed.args["slot_mapping"], fixed.args["seq_lens"]
    for tensor, index, value, message in (
        (slots, 1, int(slots[0]), "written by 2 rows"),
        (slots, 1, 10**6, "row 1 writes slot 1000000"),
        (lengths, 1, 10**6, "row 1 attends to 1000000 positions"),
    ):
        kept = int(tensor[index])
        tensor[index] = value
        with pytest.raises(SignatureError, match=message):
            model.decode_fn(**fixed.args, **model.cache)
        tensor[index] = kept


def test_a_block_size_that_attention_cannot_read_is_refused(backend):
    with pytest.raises(KernelUnavailableError, match=r"block_size is 16.*set block_size to 128"):
        SmallModel(backend)


def test_a_weight_wider_than_the_op_takes_is_cut(backend):
    weight = torch.randint(-127, 128, (70_000, 32), dtype=torch.int8)
    packed = backend.kernels.pack_int8(weight)
    assert [part.shape[1] for part in packed.parts] == [35_008, 34_992]
    x_q = torch.randint(-127, 128, (3, 32), dtype=torch.int8)
    x_scale, w_scale = (torch.ones(n, device=backend.device) for n in (3, 70_000))
    y = backend.kernels.linear(x_q.to(backend.device), x_scale, packed, w_scale)
    want = (x_q.double() @ weight.double().T).bfloat16()
    assert torch.equal(y.cpu(), want)
