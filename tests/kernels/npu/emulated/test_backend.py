"""The NPU backend on the emulation: against the reference, rows against batches, graphs, faults."""

import math

import pytest
import torch
from torch_npu.npu import graphs as emulated_graphs

from qwen3_a8w8.errors import KernelUnavailableError, SignatureError
from qwen3_a8w8.kernels.npu.backend import NpuBackend
from qwen3_a8w8.kernels.ops import KvCache
from tests.kernels.paged_cache import (
    CACHE_NAMES,
    random_bf16_cache,
    random_cache,
    scattered_tables,
)
from tests.kernels.single_op import reference, run_ops
from tests.kernels.small_model import DIMS, SmallModel

BLOCK_SIZE = 32
LENGTHS = [1, 31, 32, 33, 100, 64, 65, 7, 300, 2, 3, 63, 150, 17, 16, 90]
MIXED = [(0, "q_proj"), (0, "down_proj"), (1, "o_proj"), (1, "gate_proj")]
KINDS = {"int8": ((), False), "mixed": (MIXED, False), "bf16-cache": ((), True)}

MODEL_TOLERANCE = 5e-2
"""Relative error of logits: activations are bfloat16 and quantised values fall to either side."""


@pytest.fixture
def backend():
    backend = NpuBackend(num_threads=1)
    yield backend
    backend.close()


def small_model(backend, kind="int8"):
    return SmallModel(backend, *KINDS[kind], block_size=BLOCK_SIZE)


def prompt(seq, length):
    gen = torch.Generator().manual_seed(seq)
    return torch.randint(0, DIMS["VOCAB"], (length,), generator=gen).tolist()


def prefilled(backend, kind="int8"):
    model = small_model(backend, kind)
    for seq, length in enumerate(LENGTHS):
        model.prefill([(seq, 0, prompt(seq, length))])
    return model


def next_rows():
    return [(seq, length, 11 + seq) for seq, length in enumerate(LENGTHS)]


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


class FixedDecode:
    """Decode of 16 sequences whose arguments keep their addresses, as the runner's do."""

    def __init__(self, model):
        self.model = model
        self.args = {
            "token_ids": torch.zeros(16, 8, dtype=torch.int32),
            "num_active": torch.zeros(1, dtype=torch.int32),
            "positions": torch.zeros(16, dtype=torch.int32),
            "seq_lens": torch.zeros(16, dtype=torch.int32),
            "slot_mapping": torch.arange(16, dtype=torch.int32),
            "block_tables": torch.zeros(16, model.tables.shape[1], dtype=torch.int32),
            "logits": torch.full((16, DIMS["VOCAB"]), float("nan")),
        }

    def run(self, rows):
        args = self.args
        for name in ("token_ids", "positions", "seq_lens", "block_tables"):
            args[name].zero_()
        args["slot_mapping"][:] = torch.arange(16)
        args["num_active"][0] = len(rows)
        args["logits"].fill_(float("nan"))
        for i, (seq, position, token) in enumerate(rows):
            args["token_ids"][i, 0] = token
            args["positions"][i], args["seq_lens"][i] = position, position + 1
            args["slot_mapping"][i] = self.model.slot(seq, position)
            args["block_tables"][i] = self.model.tables[seq]
        self.model.decode_fn(**args, **self.model.cache)
        return args["logits"].clone()


def test_decode_is_captured_once_and_replayed_with_new_lengths(backend):
    eager, replayed = prefilled(backend), prefilled(backend)
    fixed = FixedDecode(replayed)
    emulated_graphs.journal.clear()
    for step in range(4):
        rows = [(seq, length + step, 20 + seq + step) for seq, length in enumerate(LENGTHS)]
        rows = rows[: 16 - 3 * step]
        # Fresh arguments each time: always eager.
        assert torch.equal(fixed.run(rows)[: len(rows)], eager.decode(rows, 16)[: len(rows)])
        assert fixed.args["logits"][len(rows) :].isnan().all()
    kinds = [kind for kind, _ in emulated_graphs.journal]
    assert kinds == ["capture", *["update", "replay"] * 3]
    lengths = emulated_graphs.journal[-2][1][0]["actual_seq_lengths_kv"]
    assert lengths == [*(length + 4 for length in LENGTHS[:7]), *[1] * 9]


def test_without_graphs_decode_is_eager_and_says_so(backend, emulated):
    emulated.graph = False
    model = prefilled(backend)
    fixed = FixedDecode(model)
    first, second = fixed.run(next_rows()), fixed.run(next_rows())
    assert torch.equal(first, second)
    assert "not supported by this version of CANN" in backend.describe()["graphs"]


@pytest.mark.parametrize(
    ("op", "kernel", "form"),
    [
        ("npu_add_rms_norm_dynamic_quant", "add_rms_norm_quant", "split"),
        ("npu_rms_norm", "rms_norm", "sixteen"),
        ("npu_dynamic_quant", "dynamic_quant", "sixteen"),
        ("npu_quant_matmul", "quant_matmul", "sixteen"),
        ("mm", "matmul", "sixteen"),
        ("npu_swiglu", "swiglu", "sixteen"),
        ("npu_apply_rotary_pos_emb", "rotary", "plain"),
        ("npu_fused_infer_attention_score", "attention", "sixteen"),
    ],
)
def test_an_op_that_varies_with_the_batch_is_found_and_its_next_form_taken(
    backend, emulated, op, kernel, form
):
    emulated.vary = frozenset({op})
    model = prefilled(backend)
    assert backend.forms[kernel] == form
    assert f"{kernel}: {form}" in backend.describe()["forms"]
    assert backend.is_batch_invariant
    rows = next_rows()
    batch = model.decode(rows, 16)
    for index in (0, 15):
        assert torch.equal(model.decode([rows[index]], 1)[0], batch[index])


def test_antiquant_mode_that_is_missing_is_replaced_by_gathering(emulated):
    emulated.antiquant5 = False
    backend = NpuBackend(num_threads=1)
    models = [small_model(backend), small_model(reference())]
    chunks = [(0, 0, prompt(0, 40)), (1, 0, prompt(1, 7))]
    got, want = (m.prefill(chunks) for m in models)
    assert (got - want).norm() <= MODEL_TOLERANCE * want.norm()
    found = backend.describe()
    assert "mode 5 is not supported" in found["int8_cache"]
    fixed = FixedDecode(models[0])
    first, second = (fixed.run([(0, 40, 5), (1, 7, 6)])[:2] for _ in range(2))
    assert torch.equal(first, second)
    assert "gathered" in backend.describe()["graphs"]
    backend.close()


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
    ones = torch.ones(3)
    y = backend.kernels.linear(x_q, ones, packed, torch.ones(70_000))
    want = (x_q.double() @ weight.double().T).bfloat16()
    assert torch.equal(y, want)
