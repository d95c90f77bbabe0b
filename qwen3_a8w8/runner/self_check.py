"""A tiny random model on the chosen kernels, held against the reference before a real one loads.

Takes milliseconds and a few hundred kilobytes. Catches what a wrong build, an
instruction path that misbehaves on this machine, or a broken experimental flag
would otherwise do to every answer. `qwen3-a8w8 check` is the thorough test.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from qwen3_a8w8.errors import KernelUnavailableError
from qwen3_a8w8.experimental import FLAGS
from qwen3_a8w8.kernels.backend import Backend, Compiler
from qwen3_a8w8.kernels.program import Ref
from qwen3_a8w8.kernels.reference import ReferenceBackend
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
    "BLOCK_SIZE": 16,
    "MAX_POSITIONS": 64,
}
OPTIONS: Mapping[str, int | float] = {"rms_norm_eps": 1e-6}
TOLERANCE = 2e-2
"""Largest relative error of logits: values on a rounding boundary may fall to either side."""

OUTPUT_TOLERANCE = 8e-2
"""The same with flags that change output."""

_NUM_TOKENS = 21
_NUM_BLOCKS = 5
_ROWS = 16


def self_check(backend: Backend, enable: Iterable[str] = ()) -> None:
    """Compares a backend, with experimental flags, with the reference.

    Args:
        backend: kernels about to be used; left as they were.
        enable: flags that will be on.

    Raises:
        KernelUnavailableError: the results are wrong; names the backend, the flags and the error.
    """
    flags = sorted(name for name in enable if FLAGS[name].changes == "output")
    reference: Any = ReferenceBackend()
    expected = _logits(reference, {})
    found = _logits(backend, dict.fromkeys(flags, 1))
    tolerance = OUTPUT_TOLERANCE if flags else TOLERANCE
    which = f"kernels {backend.name!r}" + (f" with {', '.join(flags)}" if flags else "")
    remedy = "the start-up check failed; enable 'skip_self_check' to run them all the same"
    for name, want in expected.items():
        error = float((found[name] - want).norm() / want.norm())
        if not error <= tolerance:
            raise KernelUnavailableError(
                f"{which}: logits of {name} are off by {error:.3g}, at most {tolerance:g} is "
                f"expected; {remedy}"
            )
    if not torch.equal(found["decode, batch of 1"], found["decode, batch of 16"]):
        raise KernelUnavailableError(
            f"{which}: a row's logits depend on the batch around it; {remedy}"
        )


def _logits(backend: Backend, flags: Mapping[str, int]) -> dict[str, Tensor]:
    compiler = Compiler(backend)
    options = {**OPTIONS, **flags}
    prefill = compiler.compile(qwen3.prefill, DIMS, options)
    decode = compiler.compile(qwen3.decode, DIMS, options)
    weights = _weights({**prefill.constants, **decode.constants})
    for fn in (prefill, decode):
        refs = fn.constants
        fn.bind({name: backend.pack(ref, weights[name]) for name, ref in refs.items()})
    shape = (DIMS["NUM_LAYERS"], _NUM_BLOCKS, DIMS["KV_HEADS"], DIMS["BLOCK_SIZE"])
    device = backend.device
    cache = {
        "k_cache": torch.zeros((*shape, DIMS["HEAD_DIM"]), dtype=torch.int8, device=device),
        "v_cache": torch.zeros((*shape, DIMS["HEAD_DIM"]), dtype=torch.int8, device=device),
        "k_scale": torch.zeros(shape, device=device),
        "v_scale": torch.zeros(shape, device=device),
    }
    tables = torch.tensor([[1, 2, 0, 0]], dtype=torch.int32)
    positions = torch.arange(_NUM_TOKENS, dtype=torch.int32)
    ids = (positions * 7 + 3) % DIMS["VOCAB"]

    def run(fn: Any, logits: Tensor, **args: Tensor) -> Tensor:
        moved = {name: tensor.to(device) for name, tensor in args.items()}
        logits = logits.to(device)
        fn(logits=logits, **moved, **cache)
        return logits.cpu()

    results = {
        "prefill": run(
            prefill,
            torch.zeros(2, DIMS["VOCAB"]),
            token_ids=ids.int(),
            positions=positions,
            context_lens=positions + 1,
            seq_index=torch.zeros(_NUM_TOKENS, dtype=torch.int32),
            slot_mapping=positions + DIMS["BLOCK_SIZE"],
            block_tables=tables,
            logits_indices=torch.tensor([0, _NUM_TOKENS - 1], dtype=torch.int32),
        )
    }
    for size in (1, _ROWS):
        live = min(size, 3)
        token_ids = torch.zeros(size, 8, dtype=torch.int32)
        token_ids[:live, 0] = torch.tensor([5, 6, 7][:live])
        at = torch.zeros(size, dtype=torch.int32)
        # Row 0 goes on with the sequence, the others begin ones of their own.
        at[0] = _NUM_TOKENS
        lengths = torch.zeros(size, dtype=torch.int32)
        lengths[:live] = at[:live] + 1
        slots = torch.arange(size, dtype=torch.int32)
        block_tables = torch.zeros(size, tables.shape[1], dtype=torch.int32)
        block_tables[0] = tables[0]
        slots[0] = _NUM_TOKENS + DIMS["BLOCK_SIZE"]
        for row in range(1, live):
            block_tables[row, 0] = 2 + row
            slots[row] = (2 + row) * DIMS["BLOCK_SIZE"]
        logits = run(
            decode,
            torch.zeros(size, DIMS["VOCAB"]),
            token_ids=token_ids,
            num_active=torch.tensor([live], dtype=torch.int32),
            positions=at,
            seq_lens=lengths,
            slot_mapping=slots,
            block_tables=block_tables,
        )
        results[f"decode, batch of {size}"] = logits[0].clone()
    for fn in (prefill, decode):
        fn.close()
    return results


def _weights(refs: Mapping[str, Ref]) -> dict[str, Tensor]:
    """Random constants; the same for a name whatever the other constants are."""
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
