"""A tiny random Qwen3 on a backend, for the start-up check: built in milliseconds, deterministic.

Block 0 is the scratch block; one sequence has blocks 1 and 2, further rows of a batch
start their own sequences in the following blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from qwen3_a8w8.config import TOKENS_PER_ROW
from qwen3_a8w8.experimental import BF16_KV_CACHE
from qwen3_a8w8.kernels.backend import Backend, Compiler
from qwen3_a8w8.kernels.program import Ref
from qwen3_a8w8.model import qwen3
from qwen3_a8w8.model.rope import rope_table
from qwen3_a8w8.quantization.int8 import quantize_weight

DIMS = {
    "NUM_LAYERS": 2,
    "HIDDEN": 64,
    "NUM_HEADS": 4,
    "KV_HEADS": 2,
    "HEAD_DIM": 32,
    "INTERMEDIATE": 96,
    "VOCAB": 80,
    "MAX_POSITIONS": 64,
}
BLOCK_SIZE = 32
OPTIONS: Mapping[str, int | float] = {"rms_norm_eps": 1e-6}

_NUM_BLOCKS = 5
_TABLE = (1, 2, 0, 0)


class TinyModel:
    """Two layers with random weights, and a cache of five blocks.

    Args:
        backend: kernels to run on; `close` leaves them unchanged.
        flags: experimental flags that change output.
    """

    def __init__(self, backend: Backend, flags: Sequence[str]) -> None:
        compiler = Compiler(backend)
        options = {**OPTIONS, **dict.fromkeys(flags, 1)}
        is_bf16 = BF16_KV_CACHE in flags
        dims = {**DIMS, **qwen3.kv_cache_dims(BLOCK_SIZE, is_bf16=is_bf16)}
        self._device = backend.device
        self._prefill = compiler.compile(qwen3.prefill, dims, options)
        self._decode = compiler.compile(qwen3.decode, dims, options)
        weights = _weights({**self._prefill.constants, **self._decode.constants})
        for fn in (self._prefill, self._decode):
            refs = fn.constants
            fn.bind({name: backend.pack(ref, weights[name]) for name, ref in refs.items()})
        heads = (DIMS["NUM_LAYERS"], _NUM_BLOCKS, DIMS["KV_HEADS"])
        values = (*heads, BLOCK_SIZE, DIMS["HEAD_DIM"])
        scales = (*heads, dims["SCALES_PER_BLOCK"])
        dtype = torch.bfloat16 if is_bf16 else torch.int8
        self._cache = {
            "k_cache": torch.zeros(values, dtype=dtype, device=self._device),
            "v_cache": torch.zeros(values, dtype=dtype, device=self._device),
            "k_scale": torch.zeros(scales, device=self._device),
            "v_scale": torch.zeros(scales, device=self._device),
        }

    def prefill(self, ids: Sequence[int]) -> Tensor:
        """Starts the sequence; returns logits of its first and last token, [2, vocab]."""
        count = len(ids)
        positions = torch.arange(count, dtype=torch.int32)
        return self._run(
            self._prefill,
            torch.zeros(2, DIMS["VOCAB"]),
            token_ids=torch.tensor(ids, dtype=torch.int32),
            positions=positions,
            context_lens=positions + 1,
            seq_index=torch.zeros(count, dtype=torch.int32),
            slot_mapping=positions + BLOCK_SIZE,
            block_tables=torch.tensor([_TABLE], dtype=torch.int32),
            logits_indices=torch.tensor([0, count - 1], dtype=torch.int32),
        )

    def decode(self, token: int, position: int, batch_size: int) -> Tensor:
        """Continues the sequence; returns its logits [vocab].

        Args:
            token: its next token.
            position: of that token.
            batch_size: a compiled one; a larger batch also starts two other sequences.
        """
        live = min(batch_size, 3)
        token_ids = torch.zeros(batch_size, TOKENS_PER_ROW, dtype=torch.int32)
        token_ids[:live, 0] = torch.tensor([token, 6, 7][:live])
        at = [position] + [0] * (live - 1)
        tables = [_TABLE, *((2 + row, 0, 0, 0) for row in range(1, live))]
        return self._rows(token_ids, at, tables, batch_size)[0]

    def decode_drafts(self, tokens: Sequence[int], position: int) -> Tensor:
        """Decodes a token and draft tokens after it in one step; returns logits [tokens, vocab].

        Args:
            tokens: at most 8.
            position: of the first.
        """
        token_ids = torch.zeros(1, TOKENS_PER_ROW, dtype=torch.int32)
        token_ids[0, : len(tokens)] = torch.tensor(tokens)
        at = [position + i for i in range(len(tokens))]
        return self._rows(token_ids, at, [_TABLE] * len(at), TOKENS_PER_ROW)

    def close(self) -> None:
        """Frees scratch memory."""
        self._prefill.close()
        self._decode.close()

    def _rows(
        self, token_ids: Tensor, at: Sequence[int], tables: Sequence[Sequence[int]], num_rows: int
    ) -> Tensor:
        live = len(at)
        positions = torch.zeros(num_rows, dtype=torch.int32)
        positions[:live] = torch.tensor(at)
        lengths = torch.zeros(num_rows, dtype=torch.int32)
        lengths[:live] = positions[:live] + 1
        slots = torch.arange(num_rows, dtype=torch.int32) % BLOCK_SIZE
        block_tables = torch.zeros(num_rows, len(_TABLE), dtype=torch.int32)
        for row, (position, table) in enumerate(zip(at, tables, strict=True)):
            block_tables[row] = torch.tensor(table)
            slots[row] = table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
        logits = self._run(
            self._decode,
            torch.zeros(num_rows, DIMS["VOCAB"]),
            token_ids=token_ids,
            num_active=torch.tensor([live], dtype=torch.int32),
            positions=positions,
            seq_lens=lengths,
            slot_mapping=slots,
            block_tables=block_tables,
        )
        return logits[:live]

    def _run(self, fn: Any, logits: Tensor, **args: Tensor) -> Tensor:
        moved = {name: tensor.to(self._device) for name, tensor in args.items()}
        logits = logits.to(self._device)
        fn(logits=logits, **moved, **self._cache)
        return logits.cpu()


def _weights(refs: Mapping[str, Ref]) -> dict[str, Tensor]:
    """Random constants; deterministic per name, independent of the other constants."""
    weights: dict[str, Tensor] = {}
    for name, ref in refs.items():
        shape = tuple(int(str(extent)) for extent in ref.shape)
        base = name.removesuffix(".w_q").removesuffix(".w_scale")
        generator = torch.Generator().manual_seed(sum(map(ord, base)))
        if name == "rope":
            weights[name] = rope_table(shape[0], shape[1], 1e6)
        elif len(shape) == 1 and base == name:
            weights[name] = torch.rand(shape, generator=generator) + 0.5
        else:
            rows = shape[0]
            width = shape[1] if len(shape) > 1 else _width_of(refs, base)
            matrix = torch.randn(rows, width, generator=generator) / width**0.5
            if base == name:
                weights[name] = matrix.bfloat16()
            else:
                w_q, w_scale = quantize_weight(matrix)
                weights[name] = w_q if name.endswith(".w_q") else w_scale
    return weights


def _width_of(refs: Mapping[str, Ref], base: str) -> int:
    return int(str(refs[f"{base}.w_q"].shape[1]))
