"""Fused attention in the forms a backend may use, both versions of the op."""

import math

import numpy as np
import pytest
import torch
import torch_npu
from torch_npu._emulation.refusals import ContractError

from tests.kernels.npu.emulated.support import BF16, attention, f64, generator, int8s, random

D, BLOCK = 128, 128
SCALE = 1 / math.sqrt(D)
TOLERANCE = 2.0**-7


def first(q, k, v, **given):
    return torch_npu.npu_fused_infer_attention_score(q, k, v, **given)[0]


RENAMED = {
    "actual_seq_lengths": "actual_seq_qlen",
    "actual_seq_lengths_kv": "actual_seq_kvlen",
    "key_antiquant_scale": "dequant_scale_key",
    "key_antiquant_offset": "dequant_offset_key",
    "value_antiquant_scale": "dequant_scale_value",
    "value_antiquant_offset": "dequant_offset_value",
    "key_antiquant_mode": "key_quant_mode",
    "value_antiquant_mode": "value_quant_mode",
    "num_heads": "num_query_heads",
    "scale": "softmax_scale",
    "softmax_lse_flag": "return_softmax_lse",
}


def second(q, k, v, **given):
    given = {RENAMED.get(name, name): value for name, value in given.items()}
    return torch_npu.npu_fused_infer_attention_score_v2(q, k, v, **given)[0]


@pytest.fixture(params=[first, second], ids=["v1", "v2"])
def fia(request):
    return request.param


class Paged:
    """A cache in our layout with two sequences, and the arguments of a decode over it."""

    def __init__(self, heads=40, kv_heads=8, lengths=(130, 7), is_int8=True):
        shape = (6, kv_heads, BLOCK, D)
        self.heads, self.kv_heads, self.lengths = heads, kv_heads, list(lengths)
        self.table = torch.tensor([[4, 1, 0], [3, 0, 0]], dtype=torch.int32)
        self.q = random(2, heads, 1, D, seed=5)
        if is_int8:
            self.k, self.v = int8s(*shape), int8s(*shape, seed=1)
            self.k_scale = torch.rand(shape[:3], generator=generator(2)) / 100
            self.v_scale = torch.rand(shape[:3], generator=generator(3)) / 100
            self.antiquant = {
                "key_antiquant_scale": self.k_scale,
                "value_antiquant_scale": self.v_scale,
                "key_antiquant_offset": torch.zeros(shape[:3]),
                "value_antiquant_offset": torch.zeros(shape[:3]),
                "key_antiquant_mode": 5,
                "value_antiquant_mode": 5,
            }
            self.keys = f64(self.k) * f64(self.k_scale)[..., None]
            self.values = f64(self.v) * f64(self.v_scale)[..., None]
        else:
            self.k, self.v = random(*shape), random(*shape, seed=1)
            self.antiquant = {}
            self.keys, self.values = f64(self.k), f64(self.v)

    def arguments(self, **changed):
        return (
            {
                "block_table": self.table,
                "actual_seq_lengths_kv": self.lengths,
                "num_heads": self.heads,
                "num_key_value_heads": self.kv_heads,
                "scale": SCALE,
                "input_layout": "BNSD",
                "block_size": BLOCK,
            }
            | self.antiquant
            | changed
        )

    def wanted(self):
        out = np.zeros((2, self.heads, 1, D))
        for b, length in enumerate(self.lengths):
            positions = np.arange(length)
            blocks = self.table.numpy()[b][positions // BLOCK]
            for head in range(self.heads if length else 0):
                kv = head // (self.heads // self.kv_heads)
                k = self.keys[blocks, kv, positions % BLOCK]
                v = self.values[blocks, kv, positions % BLOCK]
                out[b, head, 0] = attention(f64(self.q)[b, head, 0], k, v, SCALE)
        return out


@pytest.mark.parametrize("heads", [(40, 8), (32, 8), (16, 8), (4, 2)])
@pytest.mark.parametrize("lengths", [(130, 7), (128, 1), (384, 0)])
def test_paged_int8_decode(fia, heads, lengths):
    paged = Paged(*heads, lengths=lengths)
    out = fia(paged.q, paged.k, paged.v, **paged.arguments())
    assert out.dtype == BF16
    np.testing.assert_allclose(f64(out), paged.wanted(), atol=TOLERANCE, rtol=TOLERANCE)


def test_paged_float_decode(fia):
    paged = Paged(is_int8=False)
    out = fia(paged.q, paged.k, paged.v, **paged.arguments())
    np.testing.assert_allclose(f64(out), paged.wanted(), atol=TOLERANCE, rtol=TOLERANCE)


def test_decode_of_a_row_has_the_same_bits_alone_and_in_a_batch(fia):
    paged = Paged()
    together = fia(paged.q, paged.k, paged.v, **paged.arguments())
    alone = fia(
        paged.q[1:].clone(),
        paged.k,
        paged.v,
        **paged.arguments(block_table=paged.table[1:].clone(), actual_seq_lengths_kv=[7]),
    )
    assert torch.equal(alone[0], together[1])


def test_decode_ignores_what_lies_past_the_length(fia):
    paged = Paged()
    before = fia(paged.q, paged.k, paged.v, **paged.arguments())
    paged.k[1, :, 2:], paged.k_scale[1, :, 2:] = 99, float("nan")
    assert torch.equal(before, fia(paged.q, paged.k, paged.v, **paged.arguments()))


MASK = torch.ones(2048, 2048, dtype=torch.bool).triu(1)


def tnd_arguments(q_ends, kv_ends, **changed):
    return {
        "actual_seq_lengths": q_ends,
        "actual_seq_lengths_kv": kv_ends,
        "atten_mask": MASK,
        "sparse_mode": 3,
        "num_heads": 4,
        "num_key_value_heads": 2,
        "scale": SCALE,
        "input_layout": "TND",
    } | changed


@pytest.mark.parametrize(("q_lens", "kv_lens"), [((5, 3), (5, 3)), ((4, 1), (9, 6))])
def test_tnd_prefill_is_causal_from_the_right(fia, q_lens, kv_lens):
    q = random(sum(q_lens), 4, D)
    k, v = random(sum(kv_lens), 2, D, seed=1), random(sum(kv_lens), 2, D, seed=2)
    ends, kv_ends = np.cumsum(q_lens).tolist(), np.cumsum(kv_lens).tolist()
    out = f64(fia(q, k, v, **tnd_arguments(ends, kv_ends)))
    for q_len, kv_len, end, kv_end in zip(q_lens, kv_lens, ends, kv_ends, strict=True):
        for i in range(q_len):
            for head in range(4):
                start, seen = kv_end - kv_len, kv_len - q_len + i + 1
                keys = f64(k)[start : start + seen, head // 2]
                values = f64(v)[start : start + seen, head // 2]
                token = end - q_len + i
                wanted = attention(f64(q)[token, head], keys, values, SCALE)
                np.testing.assert_allclose(out[token, head], wanted, atol=TOLERANCE)


def test_prefill_whole_and_in_chunks_has_the_same_bits(fia):
    q, k, v = random(9, 4, D), random(9, 2, D, seed=1), random(9, 2, D, seed=2)
    whole = fia(q, k, v, **tnd_arguments([9], [9]))
    chunk = fia(q[5:].clone(), k, v, **tnd_arguments([4], [9]))
    assert torch.equal(whole[5:], chunk)


def test_out_form_writes_its_outputs():
    paged = Paged()
    wanted = first(paged.q, paged.k, paged.v, **paged.arguments())
    out, lse = torch.zeros_like(paged.q), torch.zeros(1)
    workspace = torch_npu._npu_fused_infer_attention_score_get_max_workspace(
        paged.q, paged.k, paged.v, **paged.arguments()
    )
    returned = torch_npu.npu_fused_infer_attention_score.out(
        paged.q, paged.k, paged.v, **paged.arguments(), workspace=workspace, out=[out, lse]
    )
    assert torch.equal(out, wanted)
    assert returned[0].data_ptr() == out.data_ptr()


def decode(**changed):
    paged = Paged(4, 2)
    q = changed.pop("q", paged.q)
    k, v = changed.pop("kv", (paged.k, paged.v))
    return lambda: first(q, k, v, **paged.arguments(**changed))


def prefill(q=None, k=None, **changed):
    q = random(5, 4, D) if q is None else q
    k = random(5, 2, D, seed=1) if k is None else k
    arguments = tnd_arguments([5], [5]) | changed
    return lambda: first(q, k, k.clone(), **arguments)


P = Paged(4, 2)
FORBIDDEN = {
    "float32 query": (decode(q=P.q.float()), "query is"),
    "part of a query": (decode(q=random(2, 4, 1, 2 * D)[..., :D]), "contiguous"),
    "query BSND": (decode(q=random(2, 1, 4, D)), "heads"),
    "layout BSH": (decode(input_layout="BSH"), "BSH"),
    "no lengths": (decode(actual_seq_lengths_kv=None), "actual_seq_lengths_kv"),
    "too few lengths": (decode(actual_seq_lengths_kv=[1, 2], q=random(3, 4, 1, D)), "lengths"),
    "length past the table": (decode(actual_seq_lengths_kv=[385, 1]), "385"),
    "negative length": (decode(actual_seq_lengths_kv=[-1, 1]), "negative"),
    "int64 block table": (decode(block_table=P.table.long()), "block_table"),
    "block past the cache": (decode(block_table=P.table + 4), "not in"),
    "block table of another batch": (decode(block_table=P.table[:1]), "block_table"),
    "no block size": (decode(block_size=0), "block_size 0"),
    "block size of 16": (
        decode(
            block_size=16,
            kv=(int8s(6, 2, 16, D), int8s(6, 2, 16, D)),
            actual_seq_lengths_kv=[16, 1],
        ),
        "multiple of 32",
    ),
    "cache (blocks, block, heads, D)": (
        decode(kv=tuple(t.transpose(1, 2).contiguous() for t in (P.k, P.v))),
        "key cache",
    ),
    "several query tokens": (decode(q=random(2, 4, 3, D)), "only 1 can be"),
    "no key scale": (decode(key_antiquant_scale=None), "key_antiquant_scale"),
    "bf16 scale": (decode(key_antiquant_scale=P.k_scale.bfloat16()), "key_antiquant_scale"),
    "scale [..., 1]": (decode(key_antiquant_scale=P.k_scale[..., None]), "key_antiquant_scale"),
    "one offset": (decode(value_antiquant_offset=None), "offset"),
    "mode 4": (decode(key_antiquant_mode=4, value_antiquant_mode=4), "modes"),
    "no modes": (decode(key_antiquant_mode=0, value_antiquant_mode=0), "modes"),
    "heads that don't divide": (decode(num_key_value_heads=3), "fit"),
    "NZ cache with other heads": (
        decode(kv=tuple(torch_npu.npu_format_cast(t, 29) for t in (P.k, P.v))),
        "FRACTAL_NZ",
    ),
    "a cast query": (decode(q=torch_npu.npu_format_cast(P.q, 29)), "format"),
    "TND with D = 64": (prefill(random(5, 4, 64), random(5, 2, 64)), "D is 64"),
    "TND without lengths": (prefill(actual_seq_lengths=None), "needs actual"),
    "TND with lengths that aren't sums": (
        prefill(actual_seq_lengths=[3, 2], actual_seq_lengths_kv=[3, 2]),
        "cumulative",
    ),
    "TND with sums short of the tokens": (prefill(actual_seq_lengths=[4]), "cumulative"),
    "TND with a block table": (prefill(block_table=P.table, block_size=128), "block_table"),
    "sparse mode 3 without a mask": (prefill(atten_mask=None), "atten_mask"),
    "a small mask": (prefill(atten_mask=MASK[:5, :5]), "2048"),
    "a mask of ones below the diagonal": (prefill(atten_mask=~MASK), "diagonal"),
    "a float mask": (prefill(atten_mask=MASK.float()), "atten_mask is"),
}


@pytest.mark.parametrize("case", FORBIDDEN)
def test_what_a_document_forbids_is_refused(case):
    call, words = FORBIDDEN[case]
    with pytest.raises(ContractError, match=words):
        call()


def test_device_without_mode_5_refuses_it_and_keeps_float_caches(emulated):
    emulated.antiquant5 = False
    with pytest.raises(RuntimeError, match="561002"):
        decode()()
    paged = Paged(is_int8=False)
    out = first(paged.q, paged.k, paged.v, **paged.arguments())
    np.testing.assert_allclose(f64(out), paged.wanted(), atol=TOLERANCE, rtol=TOLERANCE)


def test_attention_that_varies_with_the_batch(emulated):
    emulated.vary = frozenset({"npu_fused_infer_attention_score"})
    paged = Paged()
    together = first(paged.q, paged.k, paged.v, **paged.arguments())
    alone = first(
        paged.q[:1].clone(),
        paged.k,
        paged.v,
        **paged.arguments(block_table=paged.table[:1].clone(), actual_seq_lengths_kv=[130]),
    )
    assert not torch.equal(alone[0], together[0])
