"""Fused attention: paged decode, paged int8 decode with antiquant mode 5, TND prefill.

`attention_ops.py` registers the two versions of the op, which are this with other names.

Sources: documents "torch_npu.npu_fused_infer_attention_score" and "..._v2", constraints of Atlas
A2/A3; "aclnnIncreFlashAttentionV4" for the shape of scales that are managed by page attention.
Anything else that these ops can do is refused by name, not guessed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torch_npu._emulation import formats
from torch_npu._emulation.options import options
from torch_npu._emulation.refusals import OpContract
from torch_npu._emulation.rows import varied

HALF = (torch.float16, torch.bfloat16)
PER_TOKEN_PER_HEAD_PAGED = 5
MASK_SIZE = 2048
CAUSAL_RIGHT_DOWN = 3
NZ_HEADS = ((10, 1), (64, 8), (80, 8), (128, 16))


@dataclass
class Arguments:
    """What both versions of the op have in common, by the names of the first."""

    query: Tensor
    key: Tensor
    value: Tensor
    atten_mask: Tensor | None
    actual_seq_lengths: list[int] | None
    actual_seq_lengths_kv: list[int] | None
    block_table: Tensor | None
    key_antiquant_scale: Tensor | None
    key_antiquant_offset: Tensor | None
    value_antiquant_scale: Tensor | None
    value_antiquant_offset: Tensor | None
    num_heads: int
    num_key_value_heads: int
    scale: float
    input_layout: str
    sparse_mode: int
    inner_precise: int
    block_size: int
    key_antiquant_mode: int
    value_antiquant_mode: int
    softmax_lse_flag: bool


def attend(op: str, call: Arguments) -> tuple[Tensor, Tensor]:
    """Checks a call and computes it.

    Returns:
        Output, shaped as the query, and the log-sum-exp, or a tensor [1] of zero.
    """
    check = OpContract(op)
    q, heads = call.query, call.num_heads
    kv_heads = call.num_key_value_heads or heads
    check.dtype("query", q, HALF)
    check.require(
        heads % kv_heads == 0 and heads // kv_heads <= 64,
        f"num_heads {heads} and num_key_value_heads {kv_heads} don't fit",
    )
    check.require(heads <= 256, f"num_heads is {heads}, over 256")
    check.contiguous(query=q, key=call.key, value=call.value)
    check.plain(query=q)
    check.require(call.key.shape == call.value.shape, "key and value differ in shape")
    check.require(call.key.dtype == call.value.dtype, "key and value differ in dtype")
    check.require(call.inner_precise in (0, 1, 2, 3), f"inner_precise is {call.inner_precise}")
    if call.input_layout == "TND":
        out, lse = _tnd(check, call, heads, kv_heads)
    elif call.input_layout == "BNSD":
        out, lse = _bnsd(check, call, heads, kv_heads)
    else:
        check.require(False, f"input_layout {call.input_layout!r} isn't emulated")
    num_rows = q.shape[0]
    out = varied(op, out, num_rows).to(q.dtype)
    return out, lse if call.softmax_lse_flag else torch.zeros(1)


def _softmax(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax of the last dim, and its log-sum-exp; a row of -inf gives zeros."""
    top = scores.amax(dim=-1, keepdim=True)
    top = torch.where(top.isinf(), torch.zeros_like(top), top)
    weights = torch.exp(scores - top)
    total = weights.sum(dim=-1, keepdim=True)
    safe = torch.where(total > 0, total, torch.ones_like(total))
    return weights / safe, torch.log(total) + top


def _products(left: Tensor, right: Tensor) -> Tensor:
    """[H, A, B] times [H, B, C], by an op that `linear.py` doesn't put its own in the place of."""
    return torch.baddbmm(left.new_zeros(1), left, right, beta=0)


def _bnsd(check: OpContract, call: Arguments, heads: int, kv_heads: int) -> tuple[Tensor, Tensor]:
    q = call.query
    check.require(q.dim() == 4, f"the query has {q.dim()} dims, BNSD needs 4")
    batch, q_heads, q_len, d = q.shape
    check.require(q_heads == heads, f"the query has {q_heads} heads, num_heads is {heads}")
    check.require(d <= 512 and d % 16 == 0, f"D is {d}; it must be a multiple of 16 up to 512")
    if q_len == 1:
        check.require(call.inner_precise in (0, 1), f"inner_precise is {call.inner_precise}")
    out = torch.empty((batch, heads, q_len, d))
    lse = torch.empty((batch, heads, q_len, 1))
    keys, values, lengths = _keys_and_values(check, call, batch, q_len, kv_heads, d)
    for b in range(batch):
        length = lengths[b]
        if length == 0:  # as documented for keys of length 0
            out[b], lse[b] = 0, math.inf
            continue
        mask = _bnsd_mask(check, call, b, q_len, length)
        # One sequence at a time: no order of sums depends on the batch.
        k, v = keys(b, length), values(b, length)  # [KVH, length, D]
        scores = call.scale * _products(q[b].float().view(kv_heads, -1, d), k.transpose(1, 2))
        if mask is not None:
            scores = scores.view(heads, q_len, length).masked_fill(mask, -math.inf)
        weights, sums = _softmax(scores)
        out[b] = _products(weights.view(kv_heads, -1, length), v).view(heads, q_len, d)
        lse[b] = sums.view(heads, q_len, 1)
    return out, lse


def _bnsd_mask(
    check: OpContract, call: Arguments, b: int, q_len: int, length: int
) -> Tensor | None:
    if q_len == 1 or call.sparse_mode == 0:
        check.require(call.atten_mask is None, "atten_mask of the default mode isn't emulated")
        return None
    return _causal(check, call, q_len, length)


def _causal(check: OpContract, call: Arguments, q_len: int, kv_len: int) -> Tensor:
    """The mask of mode 3: query i sees keys up to i + kv_len - q_len."""
    check.require(
        call.sparse_mode == CAUSAL_RIGHT_DOWN, f"sparse_mode {call.sparse_mode} isn't emulated"
    )
    mask = call.atten_mask
    check.require(mask is not None, "sparse_mode 3 needs an atten_mask")
    assert mask is not None
    check.dtype("atten_mask", mask, (torch.bool, torch.int8, torch.uint8))
    check.require(
        tuple(mask.shape)
        in ((MASK_SIZE,) * 2, (1, MASK_SIZE, MASK_SIZE), (1, 1, MASK_SIZE, MASK_SIZE)),
        f"atten_mask has shape {tuple(mask.shape)}, sparse_mode 3 needs {MASK_SIZE} x {MASK_SIZE}",
    )
    flat = mask.reshape(MASK_SIZE, MASK_SIZE)
    check.require(
        bool((flat != 0).equal(torch.ones_like(flat, dtype=torch.bool).triu(1))),
        "atten_mask isn't 1 above the diagonal and 0 elsewhere",
    )
    rows = torch.arange(q_len).unsqueeze(1)
    return torch.arange(kv_len) > rows + (kv_len - q_len)


def _keys_and_values(
    check: OpContract, call: Arguments, batch: int, q_len: int, kv_heads: int, d: int
) -> tuple[Any, Any, list[int]]:
    """Functions (sequence, length) -> [kv_heads, length, D] float32, and the lengths."""
    lengths = call.actual_seq_lengths_kv
    scales = (call.key_antiquant_scale, call.value_antiquant_scale)
    if call.block_table is None:
        check.dtype("key", call.key, (call.query.dtype,))
        check.plain(key=call.key, value=call.value)
        check.require(scales == (None, None), "antiquant without block_table isn't emulated")
        check.require(call.key.dim() == 4, f"key has {call.key.dim()} dims, BNSD needs 4")
        kv_len = call.key.shape[2]
        check.shape("key", call.key, (batch, kv_heads, kv_len, d))
        chosen = [kv_len] * batch if lengths is None else _lengths(check, lengths, batch)
        check.require(max(chosen) <= kv_len, f"a length exceeds the keys' {kv_len}")
        return (
            lambda b, length: call.key[b, :, :length].float(),
            lambda b, length: call.value[b, :, :length].float(),
            chosen,
        )
    check.require(lengths is not None, "actual_seq_lengths_kv is missing; block_table needs it")
    assert lengths is not None
    chosen = _lengths(check, lengths, batch)
    table, block_size = call.block_table, call.block_size
    check.dtype("block_table", table, (torch.int32,))
    check.contiguous(block_table=table)
    check.require(
        table.dim() == 2 and table.shape[0] == batch,
        f"block_table has shape {tuple(table.shape)} for a batch of {batch}",
    )
    is_int8 = call.key.dtype == torch.int8
    check.dtype("key", call.key, (call.query.dtype, torch.int8))
    _check_block_size(check, block_size, q_len, is_int8)
    if formats.format_of(call.key) == formats.FRACTAL_NZ:
        check.require(
            (call.num_heads, kv_heads) in NZ_HEADS,
            f"a FRACTAL_NZ cache supports heads {NZ_HEADS}, not {(call.num_heads, kv_heads)}",
        )
        check.require(False, "a FRACTAL_NZ cache isn't emulated; use (blocks, heads, block, D)")
    check.require(call.key.dim() == 4, f"the key cache has {call.key.dim()} dims, not 4")
    num_blocks = call.key.shape[0]
    check.shape("key cache", call.key, (num_blocks, kv_heads, block_size, d))
    check.require(
        max(chosen) <= table.shape[1] * block_size,
        f"length {max(chosen)} exceeds the {table.shape[1]} blocks of {block_size} of block_table",
    )
    if is_int8:
        _check_antiquant(check, call, q_len, (num_blocks, kv_heads, block_size))
    else:
        check.require(scales == (None, None), f"antiquant scales with a cache of {call.key.dtype}")
    ids = table.tolist()
    for b, length in enumerate(chosen):
        for block in ids[b][: -(-length // block_size)]:
            check.require(
                0 <= block < num_blocks, f"block {block} of row {b} is not in [0, {num_blocks})"
            )

    def gather(cache: Tensor, scale: Tensor | None) -> Any:
        def rows(b: int, length: int) -> Tensor:
            blocks = ids[b][: -(-length // block_size)]
            part = cache[blocks].transpose(0, 1).reshape(kv_heads, -1, d)[:, :length].float()
            if scale is None:
                return part
            scales_of = scale[blocks].transpose(0, 1).reshape(kv_heads, -1, 1)
            return part * scales_of[:, :length]

        return rows

    return gather(call.key, scales[0]), gather(call.value, scales[1]), chosen


def _check_block_size(check: OpContract, block_size: int, q_len: int, is_int8: bool) -> None:
    if q_len > 1:
        is_right = block_size in (128, 256, 384, 512)
        check.require(is_right, f"block_size {block_size} isn't a multiple of 128 up to 512")
        check.require(not is_int8, f"{q_len} query tokens with a paged int8 cache; only 1 can be")
    multiple = 32 if is_int8 else 16
    check.require(
        0 < block_size <= 512 and block_size % multiple == 0,
        f"block_size {block_size} isn't a multiple of {multiple} up to 512",
    )


def _check_antiquant(
    check: OpContract, call: Arguments, q_len: int, shape: tuple[int, int, int]
) -> None:
    modes = (call.key_antiquant_mode, call.value_antiquant_mode)
    check.require(
        modes == (PER_TOKEN_PER_HEAD_PAGED,) * 2, f"antiquant modes {modes}; only 5 is emulated"
    )
    if not options.antiquant5:
        raise RuntimeError(
            f"{check.op}: call aclnnFusedInferAttentionScoreV3 failed, error code is 561002\n"
            "[Error]: key antiquant mode 5 is not supported on this soc version."
        )
    check.require(q_len == 1, f"antiquant mode 5 supports one query token, not {q_len}")
    for name in ("key", "value"):
        scale = getattr(call, f"{name}_antiquant_scale")
        offset = getattr(call, f"{name}_antiquant_offset")
        check.require(scale is not None, f"{name}_antiquant_scale is missing")
        check.dtype(f"{name}_antiquant_scale", scale, (torch.float32,))
        check.shape(f"{name}_antiquant_scale", scale, shape)
        check.contiguous(**{f"{name}_antiquant_scale": scale})
        if offset is not None:
            check.dtype(f"{name}_antiquant_offset", offset, (torch.float32,))
            check.shape(f"{name}_antiquant_offset", offset, shape)
            check.require(not bool(offset.any()), "offsets other than zero aren't emulated")
    check.require(
        (call.key_antiquant_offset is None) == (call.value_antiquant_offset is None),
        "one antiquant_offset is given without the other",
    )


def _lengths(check: OpContract, lengths: list[int], batch: int) -> list[int]:
    check.require(
        len(lengths) == 1 or len(lengths) >= batch,
        f"{len(lengths)} lengths for a batch of {batch}",
    )
    chosen = [int(n) for n in (lengths * batch if len(lengths) == 1 else lengths[:batch])]
    check.require(min(chosen) >= 0, f"a length is negative: {chosen}")
    check.require(max(chosen) <= 262144, f"length {max(chosen)} exceeds 262144")
    return chosen


def _tnd(check: OpContract, call: Arguments, heads: int, kv_heads: int) -> tuple[Tensor, Tensor]:
    q = call.query
    check.require(q.dim() == 3, f"the query has {q.dim()} dims, TND needs 3")
    num_tokens, q_heads, d = q.shape
    check.require(q_heads == heads, f"the query has {q_heads} heads, num_heads is {heads}")
    check.require(d == 128, f"D is {d}, TND supports 128 (and 192 for keys)")
    check.require(call.block_table is None, "TND with block_table isn't emulated")
    check.require(
        call.key_antiquant_scale is None and call.value_antiquant_scale is None,
        "TND supports no antiquant",
    )
    check.dtype("key", call.key, (q.dtype,))
    check.plain(key=call.key, value=call.value)
    check.require(
        call.actual_seq_lengths is not None and call.actual_seq_lengths_kv is not None,
        "TND needs actual_seq_lengths and actual_seq_lengths_kv",
    )
    assert call.actual_seq_lengths is not None
    assert call.actual_seq_lengths_kv is not None
    ends = [int(n) for n in call.actual_seq_lengths]
    kv_ends = [int(n) for n in call.actual_seq_lengths_kv]
    kv_tokens = call.key.shape[0]
    check.shape("key", call.key, (kv_tokens, kv_heads, d))
    check.require(len(ends) == len(kv_ends), f"{len(ends)} query and {len(kv_ends)} kv lengths")
    for name, sums, total in (("query", ends, num_tokens), ("kv", kv_ends, kv_tokens)):
        check.require(len(sums) <= 4096, f"{len(sums)} sequences, over 4096")
        check.require(
            sums == sorted(sums) and sums[0] >= 0 and sums[-1] == total,
            f"the {name} lengths {sums} aren't cumulative sums up to the {total} tokens",
        )
    out, lse = torch.empty((num_tokens, heads, d)), torch.empty((num_tokens, heads, 1))
    group, start, kv_start = heads // kv_heads, 0, 0
    for end, kv_end in zip(ends, kv_ends, strict=True):
        q_len, kv_len = end - start, kv_end - kv_start
        mask = None
        if call.sparse_mode != 0:
            mask = _causal(check, call, q_len, kv_len)
        else:
            check.require(call.atten_mask is None, "atten_mask of the default mode isn't emulated")
        k = call.key[kv_start:kv_end].float().permute(1, 2, 0).contiguous()  # [KVH, D, kv_len]
        v = call.value[kv_start:kv_end].float().transpose(0, 1).contiguous()  # [KVH, kv_len, D]
        for i in range(q_len):
            row = q[start + i].float().view(kv_heads, group, d)
            # Masked keys are left out, so that a row's bits depend on its own keys alone.
            seen = kv_len if mask is None else int((~mask[i]).sum())
            scores = call.scale * _products(row, k[:, :, :seen])
            weights, sums = _softmax(scores)
            lse[start + i] = sums.view(heads, 1)
            out[start + i] = _products(weights, v[:, :seen]).view(heads, d)
        start, kv_start = end, kv_end
    return out, lse
