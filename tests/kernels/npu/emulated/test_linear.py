"""The int8 product and the formats of its weights."""

import numpy as np
import pytest
import torch
import torch_npu
from torch_npu._emulation import formats
from torch_npu._emulation.refusals import ContractError

from tests.kernels.npu.emulated.support import BF16, EPS_BF16, f64, generator, int8s, random


@pytest.fixture
def operands():
    """x1 [5, 96], x2 [96, 64], scale [64], pertoken_scale [5]."""
    scale, x_scale = torch.rand(64, generator=generator(1)), torch.rand(5, generator=generator(2))
    return int8s(5, 96), int8s(96, 64, seed=3), scale / 1000, x_scale


@pytest.mark.parametrize("is_cast", [False, True])
@pytest.mark.parametrize("dtype", [BF16, torch.float16])
def test_quant_matmul_scales_exact_sums(operands, is_cast, dtype):
    x1, x2, scale, x_scale = operands
    weight = torch_npu.npu_format_cast(x2, formats.FRACTAL_NZ) if is_cast else x2
    y = torch_npu.npu_quant_matmul(x1, weight, scale, pertoken_scale=x_scale, output_dtype=dtype)
    assert y.dtype == dtype
    exact = f64(x1) @ f64(x2) * f64(scale) * f64(x_scale)[:, None]
    np.testing.assert_allclose(f64(y), exact, rtol=EPS_BF16)


def test_quant_matmul_int32_gives_the_sums(operands):
    x1, x2, scale, _ = operands
    y = torch_npu.npu_quant_matmul(x1, x2, scale, output_dtype=torch.int32)
    assert torch.equal(y.long(), x1.long() @ x2.long())


def test_quant_matmul_without_output_dtype_gives_int8(operands):
    x1, x2, scale, _ = operands
    y = torch_npu.npu_quant_matmul(x1, x2, scale)
    exact = np.clip(np.round(f64(x1) @ f64(x2) * f64(scale)), -128, 127)
    assert y.dtype == torch.int8
    assert np.abs(f64(y) - exact).max() <= 1  # a float32 product at a half may round either way


def test_quant_matmul_takes_a_transposed_weight(operands):
    x1, x2, scale, x_scale = operands
    arguments = {"pertoken_scale": x_scale, "output_dtype": BF16}
    plain = torch_npu.npu_quant_matmul(x1, x2, scale, **arguments)
    turned = torch_npu.npu_quant_matmul(x1, x2.t().contiguous().t(), scale, **arguments)
    assert torch.equal(plain, turned)


def matmul(x1, x2, scale, **more):
    arguments = {"pertoken_scale": torch.ones(x1.shape[0]), "output_dtype": BF16} | more
    return torch_npu.npu_quant_matmul(x1, x2, scale, **arguments)


S = torch.ones(64)
FORBIDDEN = {
    "bf16 x1": (lambda: matmul(random(2, 96), int8s(96, 64), S), "x1 is"),
    "bf16 x2": (lambda: matmul(int8s(2, 96), random(96, 64), S), "x2 is"),
    "weight [out, in]": (lambda: matmul(int8s(2, 96), int8s(64, 96), S), "x2"),
    "last dim of x2": (
        lambda: matmul(int8s(1, 2), torch.empty(2, 65536, dtype=torch.int8), torch.ones(65536)),
        "65536",
    ),
    "last dim of x1": (
        lambda: matmul(torch.empty(1, 65536, dtype=torch.int8), int8s(65536, 64), S),
        "65536",
    ),
    "x1 that isn't contiguous": (lambda: matmul(int8s(96, 2).t(), int8s(96, 64), S), "x1"),
    "every second column": (lambda: matmul(int8s(2, 96), int8s(96, 128)[:, ::2], S), "x2"),
    "scale [1, N]": (lambda: matmul(int8s(2, 96), int8s(96, 64), S[None]), "scale"),
    "short scale": (lambda: matmul(int8s(2, 96), int8s(96, 64), S[:32]), "scale"),
    "half scale": (lambda: matmul(int8s(2, 96), int8s(96, 64), S.half()), "scale"),
    "pertoken_scale [M, 1]": (
        lambda: matmul(int8s(2, 96), int8s(96, 64), S, pertoken_scale=torch.ones(2, 1)),
        "pertoken_scale",
    ),
    "pertoken_scale for int8": (
        lambda: matmul(int8s(2, 96), int8s(96, 64), S, output_dtype=None),
        "pertoken_scale",
    ),
    "float32 output": (
        lambda: matmul(int8s(2, 96), int8s(96, 64), S, output_dtype=torch.float32),
        "output_dtype",
    ),
    "part of a cast weight": (
        lambda: matmul(int8s(2, 48), torch_npu.npu_format_cast(int8s(96, 64), 29)[:48], S),
        "part",
    ),
    "cast activation": (
        lambda: matmul(torch_npu.npu_format_cast(int8s(2, 96), 29), int8s(96, 64), S),
        "format 29",
    ),
    "cast of a transposed view": (
        lambda: torch_npu.npu_format_cast(int8s(64, 96).t(), 29),
        "contiguous",
    ),
    "cast to NC1HWC0": (lambda: torch_npu.npu_format_cast(int8s(64, 96), 3), "format 3"),
    "norm of a cast tensor": (
        lambda: torch_npu.npu_dynamic_quant(torch_npu.npu_format_cast(random(32, 32), 29)),
        "format 29",
    ),
}


@pytest.mark.parametrize("case", FORBIDDEN)
def test_what_a_document_forbids_is_refused(case):
    call, words = FORBIDDEN[case]
    with pytest.raises(ContractError, match=words):
        call()


def test_format_is_that_of_the_storage_and_ends_with_it():
    weight = int8s(64, 32)
    cast = torch_npu.npu_format_cast(weight, 29)
    assert torch_npu.get_npu_format(cast) == 29
    assert torch_npu.get_npu_format(cast.view(-1)) == 29
    assert torch_npu.get_npu_format(weight) == 2
    address = cast.data_ptr()
    del cast
    fresh = [int8s(64, 32) for _ in range(8)]
    assert all(torch_npu.get_npu_format(t) == 2 for t in fresh), address


@pytest.mark.parametrize("dtype", [BF16, torch.float16, torch.float32])
def test_float_products_of_a_row_have_the_same_bits_alone_and_in_a_batch(dtype):
    x, w = random(16, 256, dtype=dtype), random(256, 96, dtype=dtype, seed=1)
    together = x @ w
    for row in range(16):
        assert torch.equal((x[row : row + 1] @ w)[0], together[row])
    np.testing.assert_allclose(f64(together), f64(x) @ f64(w), atol=0.3, rtol=EPS_BF16)


def test_float_products_of_stacks():
    a, b = random(3, 4, 32, dtype=torch.float32), random(3, 32, 5, dtype=torch.float32, seed=1)
    np.testing.assert_allclose(f64(a @ b), f64(a) @ f64(b), rtol=1e-5, atol=1e-5)
