"""The int8 rule against values worked out by hand and against exact rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qwen3_a8w8.quantization import (
    dequantize,
    quantize_activation,
    quantize_weight,
)


def test_weight_rows_of_integers_give_scale_one_and_themselves():
    weight = torch.tensor([[127.0, -3.0, 0.0], [-127.0, 64.0, 1.0]])
    w_q, w_scale = quantize_weight(weight)
    assert w_scale.tolist() == [1.0, 1.0]
    assert w_q.tolist() == [[127, -3, 0], [-127, 64, 1]]


def test_ties_round_half_to_even():
    weight = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5]])
    w_q, _ = quantize_weight(weight)
    assert w_q.tolist() == [[127, 0, 2, 2, 0, -2, -2, 126]]


def test_rounding_equals_that_of_torch_on_all_quarters():
    quarters = torch.arange(-127 * 4, 127 * 4 + 1) / 4
    x_q, x_scale = quantize_activation(quarters[None])
    assert x_scale.tolist() == [1.0]
    assert torch.equal(x_q[0], torch.round(quarters).to(torch.int8))


def test_minus_128_is_never_produced():
    x_q, _ = quantize_activation(torch.tensor([[-1.0, 1.0, -0.9999999]]))
    assert x_q.tolist() == [[-127, 127, -127]]


def test_all_zero_row_gives_zeros_and_a_usable_scale():
    x_q, x_scale = quantize_activation(torch.zeros(2, 5))
    assert not x_q.any()
    assert (x_scale > 0).all()
    assert torch.isfinite(1 / x_scale).all()
    assert x_scale.tolist() == pytest.approx([1e-10 / 127] * 2, rel=1e-6)


def test_values_below_the_floor_stay_finite_and_small():
    x = torch.tensor([[1e-38, -1e-30, 0.0]])
    x_q, x_scale = quantize_activation(x)
    assert not x_q.any()
    assert torch.isfinite(dequantize(x_q, x_scale)).all()


def test_largest_float32_stays_finite():
    x_q, x_scale = quantize_activation(torch.tensor([[3.4e38, -3.4e38]]))
    assert x_q.tolist() == [[127, -127]]
    assert torch.isfinite(x_scale).all()


def test_activation_of_three_dimensions_keeps_a_scale_per_leading_index():
    x = torch.randn(7, 8, 16, generator=torch.Generator().manual_seed(0))
    x_q, x_scale = quantize_activation(x)
    assert x_scale.shape == (7, 8)
    assert x_q.shape == x.shape


def test_weight_scale_has_one_value_per_output_channel():
    _, w_scale = quantize_weight(torch.ones(5, 3))
    assert w_scale.shape == (5,)


def test_weight_larger_than_one_block_equals_row_by_row():
    weight = torch.randn(1031, 1024, generator=torch.Generator().manual_seed(1))
    w_q, w_scale = quantize_weight(weight)
    rows = [quantize_activation(row) for row in weight]
    assert torch.equal(w_q, torch.stack([q for q, _ in rows]))
    assert torch.equal(w_scale, torch.stack([scale for _, scale in rows]))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_weight_with_a_value_that_is_not_finite_is_refused_naming_the_channel(bad):
    weight = torch.ones(700, 1024)
    weight[601, 7] = bad
    with pytest.raises(ValueError, match="output channel 601 "):
        quantize_weight(weight)


def test_weight_that_is_no_matrix_is_refused():
    with pytest.raises(ValueError, match=r"expected \[out, in\]"):
        quantize_weight(torch.ones(3))


def test_scale_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"\(2, 1\), expected \(2,\)"):
        dequantize(torch.ones(2, 3, dtype=torch.int8), torch.ones(2, 1))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=1, max_size=9))
def test_quantised_values_are_the_nearest_in_exact_arithmetic(values):
    x_q, x_scale = quantize_activation(torch.tensor([values], dtype=torch.float32))
    scale = Fraction(float(x_scale[0]))
    for value, q in zip(values, x_q[0].tolist(), strict=True):
        assert -127 <= q <= 127
        # Half a step, plus what rounding the quotient to float32 may add.
        assert abs(Fraction(value) / scale - q) <= Fraction(1, 2) + Fraction(127, 2**23)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("magnitude", [1e-9, 1e-7, 1e-5, 1e-2, 1.0, 300.0])
def test_rounded_scale_is_representable_and_within_half_a_step(dtype, magnitude):
    generator = torch.Generator().manual_seed(2)
    weight = (torch.randn(64, 96, generator=generator) * magnitude).to(dtype)
    w_q, w_scale = quantize_weight(weight, scale_dtype=dtype)
    assert torch.equal(w_scale.to(dtype).float(), w_scale)
    assert (w_scale > 0).all()
    error = (dequantize(w_q, w_scale) - weight.float()).abs()
    assert (error <= w_scale[:, None] * 0.5001).all()
