"""Attention over the paged cache, and writing into it.

Values are [blocks, kv_heads, block_size, D], scales [blocks, kv_heads, block_size]. Decode
attention reads them as they are, with antiquant mode 5; where the device doesn't have that mode,
blocks are gathered and dequantised first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qwen3_a8w8.kernels.npu.capabilities import ANTIQUANT_PER_TOKEN_HEAD
from qwen3_a8w8.kernels.npu.device import NpuDevice
from qwen3_a8w8.kernels.npu.forms import PIECE_ROWS, Forms

MAX_ROWS = 128
"""Most queries of one call: block tables and gathered blocks are as many."""

TND_HEAD_DIM = 128
_MASK_SIDE = 2048
_CAUSAL = 3
"""sparse_mode of a causal mask that is aligned at the last query and the last key."""


@dataclass(frozen=True, slots=True)
class CacheLayer:
    """One layer of the cache.

    Attributes:
        k: [blocks, kv_heads, block_size, D] int8 or bfloat16.
        v: like `k`.
        k_scale: [blocks, kv_heads, block_size] float32; [..., 0] for bfloat16.
        v_scale: like `k_scale`.
    """

    k: Tensor
    v: Tensor
    k_scale: Tensor
    v_scale: Tensor

    @property
    def is_int8(self) -> bool:
        """Whether there are scales."""
        return self.k.dtype is torch.int8


@dataclass(frozen=True, slots=True)
class Queries:
    """Which cached positions each query row sees.

    Attributes:
        tables: [sequences, max_blocks] int32, on the device.
        rows: sequence of each query row, on the host; None: row t is sequence t.
        lengths: positions that each row sees, on the host.
    """

    tables: Tensor
    rows: Sequence[int] | None
    lengths: list[int]

    @property
    def are_chunks(self) -> bool:
        """Whether the tokens of each sequence follow each other, as a causal mask assumes."""
        if self.rows is None:
            return False
        pairs = list(zip(self.rows, self.lengths, strict=True))
        return all(
            row != before or length == length_before + 1
            for (before, length_before), (row, length) in itertools.pairwise(pairs)
        )


class AttentionKernels:
    """Cache writes and attention of one device.

    Args:
        device: where they run.
        forms: in which form.
        reads_int8_cache: see `Capabilities`.
    """

    def __init__(self, device: NpuDevice, forms: Forms, *, reads_int8_cache: bool) -> None:
        self._ops = device.torch_npu
        self._where = device.torch_device
        self._forms = forms
        self._reads_int8_cache = reads_int8_cache
        self._causal_mask: Tensor | None = None
        self._offset: Tensor | None = None

    def head_slots(self, slots: Tensor, kv_heads: int, block_size: int) -> Tensor:
        """The slot of each token and head, in a cache whose heads are blocks of their own.

        Args:
            slots: [T] int32, block * block_size + offset.
            kv_heads: heads per block.
            block_size: tokens per block.

        Returns:
            [T * kv_heads] int32.
        """
        heads = torch.arange(kv_heads, dtype=torch.int32, device=slots.device)
        block = torch.div(slots, block_size, rounding_mode="floor").unsqueeze(1)
        offset = slots.unsqueeze(1) - block * block_size
        return ((block * kv_heads + heads) * block_size + offset).reshape(-1).contiguous()

    def write(
        self,
        cache: CacheLayer,
        head_slots: Tensor,
        k: tuple[Tensor, Tensor | None],
        v: tuple[Tensor, Tensor | None],
    ) -> None:
        """Writes keys and values of tokens.

        Args:
            cache: written in place.
            head_slots: of `head_slots`, distinct.
            k: values [T, kv_heads, D] in the cache's dtype, and scales [T, kv_heads] if it has any.
            v: likewise.
        """
        num_blocks, kv_heads, block_size, head_dim = cache.k.shape
        pages = (num_blocks * kv_heads, block_size, 1, head_dim)
        self._ops.npu_scatter_pa_kv_cache(
            k[0].reshape(-1, 1, head_dim).contiguous(),
            v[0].reshape(-1, 1, head_dim).contiguous(),
            cache.k.view(pages),
            cache.v.view(pages),
            head_slots,
            cache_mode="Norm",
        )
        indices = head_slots.unsqueeze(1)
        for scales, given in ((cache.k_scale, k[1]), (cache.v_scale, v[1])):
            if given is not None:
                self._ops.npu_scatter_nd_update_(
                    scales.view(-1, 1), indices, given.reshape(-1, 1).contiguous()
                )

    def reads_paged(self, *, is_int8: bool) -> bool:
        """Whether decode reads the cache in place, so that no shape depends on lengths."""
        return self._reads_int8_cache or not is_int8

    def call_lengths(self, lengths: list[int]) -> list[int]:
        """Lengths as one call of decode attention gets them, whose rows may be padded."""
        missing = PIECE_ROWS - len(lengths) if self._forms["attention"] == "sixteen" else 0
        return [*lengths, *[1] * missing]

    def attend(self, q: Tensor, cache: CacheLayer, queries: Queries) -> Tensor:
        """Attention of each row over its sequence's cached positions.

        Args:
            q: [T, heads, D] bfloat16.
            cache: read.
            queries: what each row sees.

        Returns:
            [T, heads, D] bfloat16.
        """
        takes_tnd = self._forms["prefill_attention"] == "tnd" and q.shape[-1] == TND_HEAD_DIM
        if takes_tnd and queries.are_chunks:
            return self._by_sequence(q, cache, queries)
        tables = queries.tables
        if queries.rows is not None:
            tables = tables[torch.tensor(list(queries.rows), device=tables.device)]
        is_padded = self._forms["attention"] == "sixteen"
        most = PIECE_ROWS if is_padded else MAX_ROWS
        if q.shape[0] <= most and not is_padded:
            return self._rows(q, cache, tables.contiguous(), queries.lengths)
        parts = [
            self._piece(q[start : start + most], cache, tables[start:], queries.lengths[start:])
            for start in range(0, q.shape[0], most)
        ]
        return torch.cat(parts).contiguous()

    def _piece(
        self, q: Tensor, cache: CacheLayer, tables: Tensor, lengths: Sequence[int]
    ) -> Tensor:
        """Some rows; in form "sixteen" missing ones see one position of the scratch block."""
        count = q.shape[0]
        missing = PIECE_ROWS - count if self._forms["attention"] == "sixteen" else 0
        if missing > 0:
            q = torch.cat((q, q.new_zeros((missing, *q.shape[1:]))))
        some = tables[:count]
        if missing > 0:
            some = torch.cat((some, some.new_zeros((missing, some.shape[1]))))
        out = self._rows(q, cache, some.contiguous(), self.call_lengths(list(lengths[:count])))
        return out[:count]

    def _rows(self, q: Tensor, cache: CacheLayer, tables: Tensor, lengths: list[int]) -> Tensor:
        num_rows, num_heads, head_dim = q.shape
        kv_heads, block_size = cache.k.shape[1:3]
        keywords: dict[str, Any] = {
            "actual_seq_lengths_kv": lengths,
            "num_heads": num_heads,
            "num_key_value_heads": kv_heads,
            "scale": 1 / math.sqrt(head_dim),
            "input_layout": "BNSD",
        }
        k, v = cache.k, cache.v
        if cache.is_int8 and not self._reads_int8_cache:
            k, v = self._gathered(cache, tables, -(-max(lengths) // block_size))
        else:
            keywords |= {"block_table": tables, "block_size": block_size}
            if cache.is_int8:
                zero = self._zero_offset(cache.k_scale)
                keywords |= {
                    "key_antiquant_scale": cache.k_scale,
                    "value_antiquant_scale": cache.v_scale,
                    "key_antiquant_offset": zero,
                    "value_antiquant_offset": zero,
                    "key_antiquant_mode": ANTIQUANT_PER_TOKEN_HEAD,
                    "value_antiquant_mode": ANTIQUANT_PER_TOKEN_HEAD,
                }
        query = q.contiguous().unsqueeze(2)  # [T, heads, 1, D]
        out: Tensor = self._ops.npu_fused_infer_attention_score(query, k, v, **keywords)[0]
        return out.view(num_rows, num_heads, head_dim)

    def _zero_offset(self, scale: Tensor) -> Tensor:
        """Offsets of a symmetric cache; one tensor serves all layers."""
        if self._offset is None or self._offset.shape != scale.shape:
            self._offset = torch.zeros_like(scale)
        return self._offset

    def _gathered(
        self, cache: CacheLayer, tables: Tensor, num_blocks: int
    ) -> tuple[Tensor, Tensor]:
        """Keys and values of the first blocks of each row, dequantised: [T, kv_heads, S, D]."""
        blocks = tables[:, :num_blocks].long()

        def one(values: Tensor, scales: Tensor) -> Tensor:
            wide = values[blocks].float() * scales[blocks].unsqueeze(-1)  # [T, n, kv, size, D]
            moved = wide.to(torch.bfloat16).transpose(1, 2)
            return moved.reshape(moved.shape[0], moved.shape[1], -1, moved.shape[-1]).contiguous()

        return one(cache.k, cache.k_scale), one(cache.v, cache.v_scale)

    def _by_sequence(self, q: Tensor, cache: CacheLayer, queries: Queries) -> Tensor:
        """Prefill: the chunk of each sequence against all of its keys, in one call."""
        assert queries.rows is not None
        ends, kv_lengths, order = _chunks(queries.rows, queries.lengths)
        num_heads, head_dim = q.shape[1:]
        block_size = cache.k.shape[2]
        keys: list[Tensor] = []
        values: list[Tensor] = []
        for row, length in zip(order, kv_lengths, strict=True):
            blocks = queries.tables[row, : -(-length // block_size)].long()
            for into, source, scales in (
                (keys, cache.k, cache.k_scale),
                (values, cache.v, cache.v_scale),
            ):
                part = source[blocks]  # [n, kv_heads, block_size, D]
                if cache.is_int8:
                    part = (part.float() * scales[blocks].unsqueeze(-1)).to(torch.bfloat16)
                flat = part.transpose(1, 2).reshape(-1, part.shape[1], head_dim)
                into.append(flat[:length])
        kv_ends = torch.tensor(kv_lengths).cumsum(0).tolist()
        out: Tensor = self._ops.npu_fused_infer_attention_score(
            q.contiguous(),
            torch.cat(keys).contiguous(),
            torch.cat(values).contiguous(),
            atten_mask=self._mask(),
            actual_seq_lengths=ends,
            actual_seq_lengths_kv=kv_ends,
            num_heads=num_heads,
            num_key_value_heads=cache.k.shape[1],
            scale=1 / math.sqrt(head_dim),
            input_layout="TND",
            sparse_mode=_CAUSAL,
        )[0]
        return out

    def _mask(self) -> Tensor:
        if self._causal_mask is None:
            ones = torch.ones(_MASK_SIDE, _MASK_SIDE, dtype=torch.int8)
            self._causal_mask = ones.triu(1).to(self._where)
        return self._causal_mask


def _chunks(rows: Sequence[int], lengths: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    """Runs of tokens of one sequence: ends of the runs, lengths of their keys, sequences."""
    ends: list[int] = []
    kv_lengths: list[int] = []
    order: list[int] = []
    for index, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        if order and order[-1] == row:
            ends[-1], kv_lengths[-1] = index + 1, length
        else:
            ends.append(index + 1)
            kv_lengths.append(length)
            order.append(row)
    return ends, kv_lengths, order
