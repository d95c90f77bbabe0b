import pytest
import torch

from tests.kernels.single_op import assert_close, reference, run_ops

SHAPES = [(1, 1), (17, 5), (48, 64), (50, 130), (161, 2052)]


def _linear(backend, x, weight, residual=None, num_active=None):
    def fn(ops, refs):
        constant = ops.bf16_weight("w", *weight.shape)
        if residual is None:
            return (ops.linear_bf16(refs["x"], constant),)
        return (ops.linear_bf16_add(refs["x"], constant, refs["residual"]),)

    per_row = {"x": x} if residual is None else {"x": x, "residual": residual}
    return run_ops(backend, fn, per_row, constants={"w.weight": weight}, num_active=num_active)[0]


def _operands(num_rows, num_out, num_in):
    gen = torch.Generator().manual_seed(num_rows)
    x = torch.randn(num_rows, num_in, generator=gen)
    return x, torch.randn(num_out, num_in, generator=gen).bfloat16()


@pytest.mark.parametrize(("num_out", "num_in"), SHAPES)
def test_linear_bf16_any_shape_is_close_to_reference(backend, num_out, num_in):
    for num_rows in (1, 2, 5, 16, 17):
        x, weight = _operands(num_rows, num_out, num_in)
        assert_close(_linear(backend, x, weight), _linear(reference(), x, weight), 2e-6)


@pytest.mark.parametrize(("num_out", "num_in"), SHAPES)
def test_linear_bf16_row_gives_the_same_bits_alone_and_among_others(backend, num_out, num_in):
    x, weight = _operands(21, num_out, num_in)
    residual = torch.randn(21, num_out, generator=torch.Generator().manual_seed(1))
    together = _linear(backend, x, weight, residual)
    for row in range(21):
        alone = _linear(backend, x[row : row + 1], weight, residual[row : row + 1])
        assert torch.equal(alone[0], together[row])


def test_linear_bf16_add_adds_the_residual_in_float32(backend):
    x, weight = _operands(9, 37, 200)
    residual = torch.randn(9, 37, generator=torch.Generator().manual_seed(1))
    got = _linear(backend, x, weight, residual)
    assert torch.equal(got, residual + _linear(backend, x, weight))


def test_linear_bf16_idle_rows_are_left_alone(backend):
    x, weight = _operands(16, 40, 64)
    residual = torch.zeros(16, 40)
    for extra in ({}, {"residual": residual}):
        got = _linear(backend, x, weight, num_active=5, **extra)
        assert torch.equal(got[:5], _linear(backend, x, weight)[:5])
        assert torch.equal(got[5:], torch.full((11, 40), 77.0))
        assert torch.equal(_linear(backend, x, weight, num_active=0, **extra), got * 0 + 77)


@pytest.mark.parametrize("widths", [(1,), (16, 16), (5, 40, 3)])
def test_concat_puts_columns_side_by_side(backend, widths):
    parts = {f"p{i}": torch.randn(7, width) for i, width in enumerate(widths)}

    def fn(ops, refs):
        return (ops.concat([refs[name] for name in parts]),)

    (got,) = run_ops(backend, fn, parts, num_active=5)
    assert torch.equal(got[:5], torch.cat(list(parts.values()), dim=1)[:5])
    assert (got[5:] == 77).all()


@pytest.mark.parametrize("width", [1, 30, 64, 200])
def test_silu_mul_quantised_is_silu_mul_quant_bit_for_bit(backend, width):
    x = 4 * torch.randn(9, 2 * width, generator=torch.Generator().manual_seed(2))

    def fn(ops, refs):
        return (*ops.quantize(ops.silu_mul(refs["x"])), *ops.silu_mul_quant(refs["x"]))

    q, scale, fused_q, fused_scale = run_ops(backend, fn, {"x": x})
    assert torch.equal(q, fused_q)
    assert torch.equal(scale, fused_scale)


def test_rms_norm_quantised_is_rms_norm_quant_bit_for_bit(backend):
    x = torch.randn(9, 300, generator=torch.Generator().manual_seed(2))
    weight = torch.rand(300)

    def fn(ops, refs):
        parts = ops.rms_norm(refs["x"], refs["w"], 1e-6)
        return (*ops.quantize(parts), *ops.rms_norm_quant(refs["x"], refs["w"], 1e-6))

    q, scale, fused_q, fused_scale = run_ops(backend, fn, {"x": x}, {"w": weight})
    assert torch.equal(q, fused_q)
    assert torch.equal(scale, fused_scale)
