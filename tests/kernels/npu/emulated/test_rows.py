"""Norms, SwiGLU, quantisation and rotation against formulas in float64, and their refusals."""

import numpy as np
import pytest
import torch
import torch_npu
from torch_npu._emulation.refusals import ContractError

from tests.kernels.npu.emulated.support import BF16, EPS_BF16, f64, random


def rms_normed(x, gamma, eps):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * gamma


def silu(x):
    return x / (1 + np.exp(-x))


def assert_quantized(found, scale, exact):
    """Int8 rows within half a step of the exact values (more where bf16 rounds before)."""
    wanted_scale = np.abs(exact).max(axis=-1) / 127
    np.testing.assert_allclose(f64(scale), wanted_scale, rtol=1e-5)
    np.testing.assert_allclose(
        f64(found) * wanted_scale[..., None], exact, atol=wanted_scale.max() * 0.501
    )
    assert (np.abs(f64(found)).max(axis=-1) == 127).all()


@pytest.mark.parametrize("shape", [(1, 256), (16, 5120), (3, 8, 128)])
@pytest.mark.parametrize("dtype", [BF16, torch.float16])
def test_dynamic_quant_rows(shape, dtype):
    x = random(*shape, dtype=dtype)
    q, scale = torch_npu.npu_dynamic_quant(x)
    assert (q.dtype, scale.dtype, scale.shape) == (torch.int8, torch.float32, x.shape[:-1])
    assert_quantized(q, scale, f64(x))


def test_dynamic_quant_smooth_scales():
    x, smooth = random(4, 64), random(64, seed=1)
    q, scale = torch_npu.npu_dynamic_quant(x, smooth_scales=smooth)
    assert_quantized(q, scale, f64(x) * f64(smooth))


def test_dynamic_quant_zero_row_gives_zeros():
    q, scale = torch_npu.npu_dynamic_quant(torch.zeros(2, 32, dtype=BF16))
    assert not q.any()
    assert not scale.any()


@pytest.mark.parametrize("gamma_dtype", [BF16, torch.float32])
def test_rms_norm(gamma_dtype):
    x, gamma = random(5, 256), random(256, dtype=gamma_dtype, seed=1)
    y, rstd = torch_npu.npu_rms_norm(x, gamma, epsilon=1e-6)
    assert (y.dtype, rstd.dtype, rstd.shape) == (BF16, torch.float32, (5, 1))
    wanted = rms_normed(f64(x), f64(gamma), 1e-6)
    np.testing.assert_allclose(f64(y), wanted, rtol=EPS_BF16, atol=1e-30)


def test_rms_norm_of_heads():
    x, gamma = random(4, 8, 128), random(128, seed=1)
    y, _ = torch_npu.npu_rms_norm(x, gamma, epsilon=1e-6)
    np.testing.assert_allclose(
        f64(y), rms_normed(f64(x), f64(gamma), 1e-6), rtol=EPS_BF16, atol=1e-30
    )


def test_add_rms_norm_norms_the_sum_and_returns_it():
    x1, x2, gamma = random(3, 128), random(3, 128, seed=1), random(128, seed=2)
    y, _, total = torch_npu.npu_add_rms_norm(x1, x2, gamma, epsilon=1e-5)
    exact = f64(x1) + f64(x2)
    np.testing.assert_allclose(f64(total), exact, rtol=EPS_BF16)
    np.testing.assert_allclose(
        f64(y), rms_normed(exact, f64(gamma), 1e-5), rtol=EPS_BF16, atol=1e-30
    )


def test_add_rms_norm_dynamic_quant_first_output():
    x1, x2, gamma = random(3, 512), random(3, 512, seed=1), random(512, seed=2)
    y1, _, total, scale1, _ = torch_npu.npu_add_rms_norm_dynamic_quant(
        x1, x2, gamma, epsilon=1e-6, output_mask=[True, False]
    )
    exact = f64(x1) + f64(x2)
    np.testing.assert_allclose(f64(total), exact, rtol=EPS_BF16)
    assert_quantized(y1, scale1, rms_normed(exact, f64(gamma), 1e-6))


def test_swiglu_activates_the_first_half():
    x = random(4, 512)
    gate, up = np.split(f64(x), 2, axis=-1)
    np.testing.assert_allclose(
        f64(torch_npu.npu_swiglu(x)), silu(gate) * up, rtol=EPS_BF16, atol=1e-30
    )


@pytest.mark.parametrize("is_left", [True, False])
def test_dequant_swiglu_quant_of_floats(is_left):
    x = random(4, 512)
    q, scale = torch_npu.npu_dequant_swiglu_quant(x, activate_left=is_left, quant_mode=1)
    left, right = np.split(f64(x), 2, axis=-1)
    gate, up = (left, right) if is_left else (right, left)
    assert_quantized(q, scale, silu(gate) * up)


def test_dequant_swiglu_quant_of_sums():
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(-50000, 50000, (3, 256), generator=generator, dtype=torch.int32)
    w_scale = torch.rand(1, 256, generator=generator) / 1000
    x_scale = torch.rand(3, 1, generator=generator) / 10
    q, scale = torch_npu.npu_dequant_swiglu_quant(
        x, weight_scale=w_scale, activation_scale=x_scale, activate_left=True, quant_mode=1
    )
    gate, up = np.split(f64(x) * f64(w_scale) * f64(x_scale), 2, axis=-1)
    assert_quantized(q, scale, silu(gate) * up)


def rotated(x, angles):
    """Complex form of a rotation by halves: (a + ib) * exp(i * angle)."""
    a, b = np.split(x, 2, axis=-1)
    turned = (a + 1j * b) * np.exp(1j * angles)
    return np.concatenate((turned.real, turned.imag), axis=-1)


def angles_of(positions, d):
    return positions[:, None] * 10000.0 ** (-np.arange(0, d, 2) / d)


@pytest.fixture
def turned():
    """q, k [T, heads, 128] in float32, their positions and angles, and cos, sin [T, 1, 128]."""
    positions = np.array([0, 1, 5, 100])
    angles = angles_of(positions, 128)
    both = np.concatenate((angles, angles), axis=-1)[:, None]
    cos, sin = torch.tensor(np.cos(both)).float(), torch.tensor(np.sin(both)).float()
    q, k = random(4, 4, 128, dtype=torch.float32), random(4, 2, 128, dtype=torch.float32, seed=1)
    return q, k, positions, angles, cos, sin


def test_rotary_mul(turned):
    q, _, _, angles, cos, sin = turned
    found = torch_npu.npu_rotary_mul(q, cos, sin)
    np.testing.assert_allclose(f64(found), rotated(f64(q), angles[:, None]), atol=1e-5)


def test_apply_rotary_pos_emb_works_in_place(turned):
    q, k, _, angles, cos, sin = turned
    wanted = [rotated(f64(x), angles[:, None]) for x in (q, k)]
    args = [x.unsqueeze(0).contiguous() for x in (q, k, cos, sin)]
    out = torch_npu.npu_apply_rotary_pos_emb(*args, layout="BSND")
    for found, changed, exact in zip(out, args, wanted, strict=False):
        np.testing.assert_allclose(f64(found[0]), exact, atol=1e-5)
        assert found.data_ptr() == changed.data_ptr()


def test_mrope_one_position_per_token(turned):
    q, k, positions, angles, _, _ = turned
    table = np.zeros((128, 128))
    every = angles_of(np.arange(128), 128)
    table[:, :64], table[:, 64:] = np.cos(every), np.sin(every)
    out = torch_npu.npu_mrope(
        torch.tensor(positions),
        q.reshape(4, -1),
        k.reshape(4, -1),
        torch.tensor(table).float(),
        128,
        rotary_mode="half",
    )
    for found, x in zip(out, (q, k), strict=True):
        np.testing.assert_allclose(
            f64(found.reshape(x.shape)), rotated(f64(x), angles[:, None]), atol=1e-5
        )


@pytest.mark.parametrize("k", [1, 3, 64])
@pytest.mark.parametrize("p", [0.0, 0.3, 0.9, 1.0])
def test_top_k_top_p_keeps_what_the_definition_keeps(k, p):
    logits = random(2, 64, dtype=torch.float32)
    found = torch_npu.npu_top_k_top_p(
        logits, torch.tensor([p, 1.0]), torch.tensor([k, 64], dtype=torch.int32)
    )
    row = f64(logits)[0]
    order = np.argsort(-row, kind="stable")[:k]
    mass = np.exp(row[order]) / np.exp(row[order]).sum()
    # From the largest: kept while the mass from here to the smallest exceeds 1 - p.
    num_kept = max(1, int((np.cumsum(mass[::-1])[::-1] > 1 - p + 1e-6).sum()))
    wanted = np.full(64, -np.inf)
    wanted[order[:num_kept]] = row[order[:num_kept]]
    np.testing.assert_array_equal(f64(found)[0], wanted)
    assert torch.equal(found[1], logits[1])


def op(name, *args, **kwargs):
    return lambda: getattr(torch_npu, name)(*args, **kwargs)


X, G = random(2, 128), random(128)
X4 = torch.zeros(1, 2, 4, 128, dtype=BF16)
C4 = torch.zeros(1, 2, 1, 128, dtype=BF16)
FORBIDDEN = {
    "quantise float32": (op("npu_dynamic_quant", X.float()), "float32"),
    "quantise one dim": (op("npu_dynamic_quant", G), "at least 2"),
    "norm with bf16 x and fp16 gamma": (op("npu_rms_norm", X, G.half()), "gamma"),
    "norm of one dim": (op("npu_rms_norm", G, G), "2 to 8"),
    "norm with short gamma": (op("npu_rms_norm", X, G[:64]), "gamma"),
    "add-norm with float32 gamma": (op("npu_add_rms_norm", X, X, G.float()), "gamma"),
    "add-norm with a broadcast": (op("npu_add_rms_norm", X, X[:1], G), "x2"),
    "add-norm-quant of float32": (
        op("npu_add_rms_norm_dynamic_quant", X.float(), X.float(), G.float()),
        "x1",
    ),
    "add-norm-quant without output": (
        op("npu_add_rms_norm_dynamic_quant", X, X, G, output_mask=[False, False]),
        "no output",
    ),
    "swiglu of a transposed tensor": (op("npu_swiglu", random(4, 6).t()), "contiguous"),
    "swiglu of an odd extent": (op("npu_swiglu", random(2, 5)), "odd"),
    "int32 without activation scale": (
        op(
            "npu_dequant_swiglu_quant",
            torch.zeros(2, 8, dtype=torch.int32),
            weight_scale=torch.ones(1, 8),
            quant_mode=1,
        ),
        "activation_scale",
    ),
    "bf16 with activation scale": (
        op("npu_dequant_swiglu_quant", X, activation_scale=torch.ones(2, 1), quant_mode=1),
        "activation_scale",
    ),
    "rotation of mixed dtypes": (
        op("npu_apply_rotary_pos_emb", X4, X4, C4.float(), C4.float(), layout="BSND"),
        "cos",
    ),
    "rotation with D = 32": (
        op("npu_apply_rotary_pos_emb", *(t[..., :32].clone() for t in (X4, X4, C4, C4))),
        "64 or 128",
    ),
    "rotation in BNSD": (
        op("npu_apply_rotary_pos_emb", X4, X4, C4, C4, layout="BNSD"),
        "BNSD",
    ),
    "positions beyond the table": (
        op("npu_mrope", torch.tensor([0, 9]), X, X, random(8, 128), 128, rotary_mode="half"),
        "reach 9",
    ),
    "top_k of 0": (
        op("npu_top_k_top_p", X, None, torch.zeros(2, dtype=torch.int32)),
        "outside",
    ),
    "top_p of another dtype": (op("npu_top_k_top_p", X, torch.ones(2), None), "p is"),
}


@pytest.mark.parametrize("case", FORBIDDEN)
def test_what_a_document_forbids_is_refused(case):
    call, words = FORBIDDEN[case]
    with pytest.raises(ContractError, match=words):
        call()


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("npu_dynamic_quant", lambda x: torch_npu.npu_dynamic_quant(x)[1]),
        ("npu_rms_norm", lambda x: torch_npu.npu_rms_norm(x, x[0].clone() * 0 + 1)[0]),
        (
            "npu_add_rms_norm_dynamic_quant",
            lambda x: torch_npu.npu_add_rms_norm_dynamic_quant(
                x, x, x[0].clone() * 0 + 1, output_mask=[True, False]
            )[3],
        ),
        ("npu_swiglu", torch_npu.npu_swiglu),
        ("mm", lambda x: x @ x.t().contiguous()[:, :1]),
    ],
)
def test_vary_changes_rows_of_a_batch_only(name, call, emulated):
    x = random(16, 128)
    alone, together = call(x[:1].clone()), call(x)
    assert torch.equal(alone[0], together[0])
    emulated.vary = frozenset({name})
    assert torch.equal(call(x[:1].clone())[0], alone[0])
    assert not torch.equal(call(x)[0], alone[0])
