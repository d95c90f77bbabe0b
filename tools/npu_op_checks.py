"""Calls every torch_npu op in use alone on the device and compares with float64 on the host.

`tools/npu_first_day.py` runs this in a process of its own, since an op that faults takes the
device away from its process. One JSON line per op goes to the file given, as soon as it is
known: name, status (ok, wrong, failed), detail, and whether a row had the same bits alone and
among 16 (None where that makes no sense).

Everything is called by keyword, as the product does. `python tools/npu_op_checks.py FILE [OP...]`.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

ROWS = 16
HIDDEN, HEADS, KV_HEADS, D, BLOCK = 1024, 40, 8, 128, 128
SCALE = 1 / math.sqrt(D)
BF16 = torch.bfloat16
BF16_TOLERANCE = 2.0**-7


@dataclass
class Outcome:
    """Largest error relative to the largest value, its limit, and the invariance of rows."""

    error: float
    limit: float
    is_invariant: bool | None


Check = Callable[[Any, str], Outcome]
CHECKS: dict[str, Check] = {}


def check(name: str) -> Callable[[Check], Check]:
    """Registers the check of an op."""

    def register(fn: Check) -> Check:
        CHECKS[name] = fn
        return fn

    return register


def random(*shape: int, seed: int = 0, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def int8s(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-127, 128, shape, generator=generator, dtype=torch.int8)


def error_of(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Largest difference, relative to the largest exact value; NaN counts as infinite."""
    difference = (found.cpu().double() - exact).abs().max().item()
    if math.isnan(difference):
        return math.inf
    return difference / max(exact.abs().max().item(), 1e-30)


def same_rows(call: Callable[[slice], torch.Tensor]) -> bool:
    """Whether each row's bits are those of the row alone."""
    together = call(slice(0, ROWS)).cpu()
    return all(
        torch.equal(call(slice(row, row + 1)).cpu()[0], together[row]) for row in (0, 7, ROWS - 1)
    )


def rms_normed(x: torch.Tensor, gamma: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    x = x.double()
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * gamma.double()


def dequantized(found: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return found[0].cpu().double() * found[1].cpu().double().unsqueeze(-1)


HALF_STEP = 0.55 / 127


@check("npu_dynamic_quant")
def _dynamic_quant(npu: Any, device: str) -> Outcome:
    x = random(ROWS, HIDDEN)
    on_device = x.to(device)
    found = npu.npu_dynamic_quant(on_device)
    is_same = same_rows(lambda rows: npu.npu_dynamic_quant(on_device[rows].contiguous())[0])
    return Outcome(error_of(dequantized(found), x.double()), HALF_STEP, is_same)


@check("npu_quant_matmul")
def _quant_matmul(npu: Any, device: str) -> Outcome:
    x, w = int8s(ROWS, HIDDEN), int8s(HIDDEN, 512, seed=1)
    scale, x_scale = torch.rand(512) / 1000, torch.rand(ROWS)
    weight = npu.npu_format_cast(w.to(device).contiguous(), 29)

    def call(rows: slice) -> torch.Tensor:
        return npu.npu_quant_matmul(
            x[rows].to(device),
            weight,
            scale.to(device),
            pertoken_scale=x_scale[rows].to(device),
            output_dtype=BF16,
        )

    exact = x.double() @ w.double() * scale.double() * x_scale.double().unsqueeze(-1)
    return Outcome(error_of(call(slice(0, ROWS)), exact), BF16_TOLERANCE, same_rows(call))


@check("npu_rms_norm")
def _rms_norm(npu: Any, device: str) -> Outcome:
    x, gamma = random(ROWS, HIDDEN), random(HIDDEN, seed=1)

    def call(rows: slice) -> torch.Tensor:
        return npu.npu_rms_norm(x[rows].to(device), gamma.to(device), epsilon=1e-6)[0]

    return Outcome(
        error_of(call(slice(0, ROWS)), rms_normed(x, gamma)), BF16_TOLERANCE, same_rows(call)
    )


@check("npu_add_rms_norm")
def _add_rms_norm(npu: Any, device: str) -> Outcome:
    x, other, gamma = random(ROWS, HIDDEN), random(ROWS, HIDDEN, seed=1), random(HIDDEN, seed=2)

    def call(rows: slice) -> torch.Tensor:
        both = (x[rows].to(device), other[rows].to(device))
        return npu.npu_add_rms_norm(*both, gamma.to(device), epsilon=1e-6)[0]

    exact = rms_normed(x.double() + other.double(), gamma)
    return Outcome(error_of(call(slice(0, ROWS)), exact), BF16_TOLERANCE, same_rows(call))


@check("npu_add_rms_norm_dynamic_quant")
def _add_rms_norm_dynamic_quant(npu: Any, device: str) -> Outcome:
    x, other, gamma = random(ROWS, HIDDEN), random(ROWS, HIDDEN, seed=1), random(HIDDEN, seed=2)

    def call(rows: slice) -> tuple[torch.Tensor, ...]:
        both = (x[rows].to(device), other[rows].to(device))
        return npu.npu_add_rms_norm_dynamic_quant(
            *both, gamma.to(device), epsilon=1e-6, output_mask=[True, False]
        )

    y_q, _, _, y_scale, _ = call(slice(0, ROWS))
    exact = rms_normed(x.double() + other.double(), gamma)
    error = error_of(dequantized((y_q, y_scale)), exact)
    return Outcome(error, HALF_STEP + BF16_TOLERANCE, same_rows(lambda rows: call(rows)[0]))


@check("npu_swiglu")
def _swiglu(npu: Any, device: str) -> Outcome:
    x = random(ROWS, 2 * HIDDEN)
    gate, up = x.double().chunk(2, dim=-1)

    def call(rows: slice) -> torch.Tensor:
        return npu.npu_swiglu(x[rows].to(device), dim=-1)

    exact = gate * torch.sigmoid(gate) * up
    return Outcome(error_of(call(slice(0, ROWS)), exact), BF16_TOLERANCE, same_rows(call))


@check("npu_dequant_swiglu_quant")
def _dequant_swiglu_quant(npu: Any, device: str) -> Outcome:
    x = random(ROWS, 2 * HIDDEN)
    gate, up = x.double().chunk(2, dim=-1)

    def call(rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
        return npu.npu_dequant_swiglu_quant(x[rows].to(device), activate_left=True, quant_mode=1)

    error = error_of(dequantized(call(slice(0, ROWS))), gate * torch.sigmoid(gate) * up)
    return Outcome(error, HALF_STEP + BF16_TOLERANCE, same_rows(lambda rows: call(rows)[0]))


def _angles() -> torch.Tensor:
    positions = torch.arange(ROWS, dtype=torch.float64) * 37
    return positions[:, None] * 10000.0 ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)


def _rotated(x: torch.Tensor) -> torch.Tensor:
    a, b = x.double().chunk(2, dim=-1)
    turned = torch.complex(a, b) * torch.polar(torch.ones(()).double(), _angles()).unsqueeze(1)
    return torch.cat((turned.real, turned.imag), dim=-1)


def _tables(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    both = torch.cat((_angles(), _angles()), dim=-1).unsqueeze(1)  # [T, 1, D]
    return both.cos().to(dtype), both.sin().to(dtype)


@check("npu_rotary_mul")
def _rotary_mul(npu: Any, device: str) -> Outcome:
    x = random(ROWS, KV_HEADS, D, dtype=torch.float32)
    cos, sin = _tables(torch.float32)

    def call(rows: slice) -> torch.Tensor:
        return npu.npu_rotary_mul(x[rows].to(device), cos[rows].to(device), sin[rows].to(device))

    return Outcome(error_of(call(slice(0, ROWS)), _rotated(x)), 1e-5, same_rows(call))


@check("npu_apply_rotary_pos_emb")
def _apply_rotary_pos_emb(npu: Any, device: str) -> Outcome:
    q, k = random(ROWS, HEADS, D), random(ROWS, KV_HEADS, D, seed=1)
    cos, sin = _tables(BF16)

    def call(rows: slice) -> torch.Tensor:
        parts = (t[rows].unsqueeze(0).contiguous().to(device).clone() for t in (q, k, cos, sin))
        return npu.npu_apply_rotary_pos_emb(*parts, layout="BSND")[0][0]

    return Outcome(error_of(call(slice(0, ROWS)), _rotated(q)), 2 * BF16_TOLERANCE, same_rows(call))


@check("npu_scatter_pa_kv_cache")
def _scatter_pa_kv_cache(npu: Any, device: str) -> Outcome:
    shape = (4 * KV_HEADS, BLOCK, 1, D)
    caches = [torch.zeros(shape, dtype=torch.int8, device=device) for _ in range(2)]
    k, v = int8s(ROWS, 1, D), int8s(ROWS, 1, D, seed=1)
    slots = torch.randperm(4 * KV_HEADS * BLOCK, generator=torch.Generator().manual_seed(2))[:ROWS]
    npu.npu_scatter_pa_kv_cache(
        k.to(device), v.to(device), *caches, slots.int().to(device), cache_mode="Norm"
    )
    error = 0.0
    for cache, part in zip(caches, (k, v), strict=True):
        exact = torch.zeros(shape, dtype=torch.int8).view(-1, 1, D)
        exact[slots] = part
        error = max(error, error_of(cache.view(-1, 1, D), exact.double()))
    return Outcome(error, 0.0, None)


@check("npu_scatter_nd_update_")
def _scatter_nd_update(npu: Any, device: str) -> Outcome:
    table, updates = torch.zeros(256, 1), torch.rand(ROWS, 1)
    indices = torch.arange(ROWS).unsqueeze(1) * 7
    on_device = table.to(device).clone()
    npu.npu_scatter_nd_update_(on_device, indices.int().to(device), updates.to(device))
    table[indices[:, 0]] = updates
    return Outcome(error_of(on_device, table.double()), 0.0, None)


class _Paged:
    """A cache with ROWS sequences of different lengths."""

    def __init__(self, device: str, *, is_int8: bool) -> None:
        shape = (2 * ROWS + 1, KV_HEADS, BLOCK, D)
        self.lengths = [1 + (13 * row) % (2 * BLOCK) for row in range(ROWS)]
        self.q = random(ROWS, HEADS, 1, D)
        self.table = torch.arange(1, 2 * ROWS + 1, dtype=torch.int32).view(ROWS, 2)
        self.k, self.v = (
            (int8s(*shape), int8s(*shape, seed=1))
            if is_int8
            else (random(*shape), random(*shape, seed=1))
        )
        self.scale = torch.rand(shape[:3], generator=torch.Generator().manual_seed(3)) / 100
        self.device = device
        self.arguments: dict[str, Any] = {}
        factor = torch.ones(shape[:3])
        if is_int8:
            factor = self.scale
            offset = torch.zeros(shape[:3], device=device)
            self.arguments = {"key_antiquant_mode": 5, "value_antiquant_mode": 5}
            for name in ("key", "value"):
                self.arguments[f"{name}_antiquant_scale"] = self.scale.to(device)
                self.arguments[f"{name}_antiquant_offset"] = offset
        self.on_device = (self.k.to(device), self.v.to(device))
        self.keys = self.k.double() * factor.double().unsqueeze(-1)
        self.values = self.v.double() * factor.double().unsqueeze(-1)

    def call(self, npu: Any, rows: slice, lengths: list[int] | None = None) -> torch.Tensor:
        return npu.npu_fused_infer_attention_score(
            self.q[rows].contiguous().to(self.device),
            *self.on_device,
            block_table=self.table[rows].contiguous().to(self.device),
            actual_seq_lengths_kv=(lengths or self.lengths)[rows],
            num_heads=HEADS,
            num_key_value_heads=KV_HEADS,
            scale=SCALE,
            input_layout="BNSD",
            block_size=BLOCK,
            **self.arguments,
        )[0]

    def exact(self) -> torch.Tensor:
        out = torch.empty(ROWS, HEADS, 1, D, dtype=torch.float64)
        for row, length in enumerate(self.lengths):
            blocks = self.table[row].long()
            k = self.keys[blocks].transpose(0, 1).reshape(KV_HEADS, -1, D)[:, :length]
            v = self.values[blocks].transpose(0, 1).reshape(KV_HEADS, -1, D)[:, :length]
            k, v = (t.repeat_interleave(HEADS // KV_HEADS, dim=0) for t in (k, v))
            scores = SCALE * torch.einsum("hd,hnd->hn", self.q[row, :, 0].double(), k)
            out[row, :, 0] = torch.einsum("hn,hnd->hd", scores.softmax(-1), v)
        return out


@check("npu_fused_infer_attention_score: paged int8, antiquant mode 5")
def _paged_int8(npu: Any, device: str) -> Outcome:
    return _decode(npu, _Paged(device, is_int8=True))


@check("npu_fused_infer_attention_score: paged bf16")
def _paged_bf16(npu: Any, device: str) -> Outcome:
    return _decode(npu, _Paged(device, is_int8=False))


def _decode(npu: Any, paged: _Paged) -> Outcome:
    error = error_of(paged.call(npu, slice(0, ROWS)), paged.exact())
    is_same = same_rows(lambda rows: paged.call(npu, rows))
    return Outcome(error, 2 * BF16_TOLERANCE, is_same)


@check("npu_fused_infer_attention_score: TND, causal")
def _prefill(npu: Any, device: str) -> Outcome:
    q, k, v = (random(ROWS, heads, D, seed=heads) for heads in (HEADS, KV_HEADS, KV_HEADS + 1))
    v = v[:, :KV_HEADS].contiguous()
    mask = torch.ones(2048, 2048, dtype=torch.bool).triu(1).to(device)
    out = npu.npu_fused_infer_attention_score(
        q.to(device), k.to(device), v.to(device),
        actual_seq_lengths=[ROWS], actual_seq_lengths_kv=[ROWS], atten_mask=mask, sparse_mode=3,
        num_heads=HEADS, num_key_value_heads=KV_HEADS, scale=SCALE, input_layout="TND",
    )[0]  # fmt: skip
    keys, values = (t.double().repeat_interleave(HEADS // KV_HEADS, dim=1) for t in (k, v))
    scores = SCALE * torch.einsum("thd,shd->hts", q.double(), keys)
    scores = scores.masked_fill(torch.ones(ROWS, ROWS, dtype=torch.bool).triu(1), -math.inf)
    exact = torch.einsum("hts,shd->thd", scores.softmax(-1), values)
    return Outcome(error_of(out, exact), 2 * BF16_TOLERANCE, None)


@check("mm in bfloat16")
def _mm(npu: Any, device: str) -> Outcome:
    x, w = random(ROWS, HIDDEN), random(HIDDEN, 512, seed=1)
    weight = w.to(device)

    def call(rows: slice) -> torch.Tensor:
        return x[rows].to(device) @ weight

    exact = x.double() @ w.double()
    return Outcome(error_of(call(slice(0, ROWS)), exact), BF16_TOLERANCE, same_rows(call))


def _logits() -> torch.Tensor:
    """Rounded as lm_head's are, so that many are equal."""
    return (4 * random(ROWS, 151_936)).bfloat16().float()


@check("topk of float32 logits")
def _topk(npu: Any, device: str) -> Outcome:
    """Sampling takes these values for exact, and each id for one of the value's."""
    logits = _logits()
    values, ids = (each.cpu() for each in torch.topk(logits.to(device), 1024, dim=1))
    exact = logits.sort(dim=1, descending=True).values[:, :1024]
    is_right = torch.equal(logits.gather(1, ids.long()), values)
    are_distinct = all(len(set(row)) == len(row) for row in ids.tolist())
    found = values if is_right and are_distinct else torch.full_like(values, math.nan)
    return Outcome(error_of(found, exact.double()), 0.0, None)


@check("exp and sums of float32 logits")
def _exp_sums(npu: Any, device: str) -> Outcome:
    """Sampling allows these sums of 512 an error of 2^-10 (`candidates.REST_ERROR`)."""
    logits = _logits()[:, : 296 * 512]
    bound = logits.amax(dim=1, keepdim=True)
    on_device = logits.to(device)
    sums = torch.exp((on_device - bound.to(device)) / 0.7).view(ROWS, -1, 512).sum(dim=2)
    exact = torch.exp((logits.double() - bound.double()) / 0.7).view(ROWS, -1, 512).sum(dim=2)
    # Relative to each sum: the smallest one counts as much.
    return Outcome(error_of(sums.cpu() / exact, torch.ones_like(exact)), 2.0**-10, None)


@check("NPUGraph: capture, update of lengths, replay")
def _graph(npu: Any, device: str) -> Outcome:
    paged = _Paged(device, is_int8=True)
    paged.q, paged.table = paged.q.to(device), paged.table.to(device)
    everything = slice(0, ROWS)
    paged.call(npu, everything)
    graph = npu.npu.NPUGraph()
    with npu.npu.graph(graph, auto_dispatch_capture=True):
        out = paged.call(npu, everything, [1] * ROWS)
    for _ in range(2):
        graph.update(cpu_update_input=[{"actual_seq_lengths_kv": paged.lengths}])
        graph.replay()
        npu.npu.synchronize()
    eager = paged.call(npu, everything).cpu()
    return Outcome(error_of(out, eager.double()), 0.0, None)


def run_check(name: str, npu: Any, device: str) -> dict[str, Any]:
    """One op's line of the report."""
    try:
        outcome = CHECKS[name](npu, device)
        npu.npu.synchronize()
    except Exception as error:  # whatever an op raises is the report's content
        return {"op": name, "status": "failed", "detail": f"{type(error).__name__}: {error}"}
    is_right = outcome.error <= outcome.limit
    return {
        "op": name,
        "status": "ok" if is_right else "wrong",
        "detail": f"relative error {outcome.error:.2g}, limit {outcome.limit:.2g}",
        "is_batch_invariant": outcome.is_invariant,
    }


def main(arguments: list[str]) -> int:
    """Writes a line per op to a file."""
    path, *names = arguments
    with Path(path).open("a", encoding="utf-8") as file:
        import torch_npu  # here, so that a broken installation has its error in the output

        torch_npu.npu.set_device(0)
        device = getattr(torch_npu, "EMULATED_TORCH_DEVICE", "npu:0")
        for name in names or CHECKS:
            print(name, flush=True)  # the parent reads the last one if this process dies
            file.write(json.dumps(run_check(name, torch_npu, device)) + "\n")
            file.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
