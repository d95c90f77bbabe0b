import pytest
import torch

from tests.kernels.single_op import reference, run_ops

SHAPES = [(1, 1), (16, 4), (17, 5), (33, 63), (48, 64), (50, 130), (96, 1030), (161, 2052)]


def _operands(num_rows, num_out, num_in, seed=0):
    gen = torch.Generator().manual_seed(seed)
    x_q = torch.randint(-127, 128, (num_rows, num_in), generator=gen, dtype=torch.int8)
    w_q = torch.randint(-128, 128, (num_out, num_in), generator=gen, dtype=torch.int8)
    x_scale = torch.rand(num_rows, generator=gen) + 0.01
    w_scale = torch.rand(num_out, generator=gen) + 0.01
    return x_q, x_scale, w_q, w_scale


def _linear(backend, x_q, x_scale, w_q, w_scale, residual=None, num_active=None):
    def fn(ops, refs):
        weight = ops.linear_weight("w", *w_q.shape)
        if residual is None:
            return (ops.linear(refs["x_q"], refs["x_scale"], weight),)
        return (ops.linear_add(refs["x_q"], refs["x_scale"], weight, refs["residual"]),)

    per_row = {"x_q": x_q, "x_scale": x_scale}
    if residual is not None:
        per_row["residual"] = residual
    constants = {"w.w_q": w_q, "w.w_scale": w_scale}
    return run_ops(backend, fn, per_row, constants=constants, num_active=num_active)[0]


@pytest.mark.parametrize(("num_out", "num_in"), SHAPES)
def test_linear_any_shape_equals_reference_bit_for_bit(backend, num_out, num_in):
    for num_rows in (1, 2, 3, 7, 8, 16, 17, 64):
        operands = _operands(num_rows, num_out, num_in)
        assert torch.equal(_linear(backend, *operands), _linear(reference(), *operands))


def test_linear_every_small_row_count_equals_reference_bit_for_bit(backend):
    for num_rows in range(1, 34):
        operands = _operands(num_rows, 70, 260, seed=num_rows)
        assert torch.equal(_linear(backend, *operands), _linear(reference(), *operands))


def test_linear_more_rows_than_one_pass_equals_reference_bit_for_bit(backend):
    operands = _operands(1030, 52, 515)
    assert torch.equal(_linear(backend, *operands), _linear(reference(), *operands))


@pytest.mark.parametrize(("x_value", "w_value"), [(127, 127), (127, -128), (-127, -128)])
def test_linear_extreme_values_sum_exactly(backend, x_value, w_value):
    x_q = torch.full((3, 4096), x_value, dtype=torch.int8)
    w_q = torch.full((20, 4096), w_value, dtype=torch.int8)
    ones = torch.ones(20)
    y = _linear(backend, x_q, torch.ones(3), w_q, ones)
    assert torch.equal(y, torch.full((3, 20), float(x_value * w_value * 4096)))


def test_linear_add_adds_the_residual_in_float32(backend):
    for num_rows in (1, 16, 33):
        operands = _operands(num_rows, 37, 200)
        residual = torch.randn(num_rows, 37, generator=torch.Generator().manual_seed(1))
        got = _linear(backend, *operands, residual=residual)
        assert torch.equal(got, _linear(reference(), *operands, residual=residual))


@pytest.mark.parametrize("width", [1, 30, 64, 192, 200, 320])
def test_linear_after_quantize_equals_reference_bit_for_bit(backend, width):
    # Quantised temporaries have padded rows with their sums; a chain of two shows them used.
    x = torch.randn(70, width, generator=torch.Generator().manual_seed(2))
    first = torch.randint(-128, 128, (width, width), dtype=torch.int8)
    second = torch.randint(-128, 128, (40, width), dtype=torch.int8)
    constants = {
        "a.w_q": first,
        "a.w_scale": torch.full((width,), 0.01),
        "b.w_q": second,
        "b.w_scale": torch.full((40,), 0.02),
    }

    def fn(ops, refs):
        hidden = ops.linear(*ops.quantize(refs["x"]), ops.linear_weight("a", width, width))
        hidden = ops.linear_add(*ops.quantize(hidden), ops.linear_weight("a", width, width), hidden)
        return (ops.linear(*ops.quantize(hidden), ops.linear_weight("b", 40, width)),)

    for num_rows in (1, 4, 5, 15, 16, 17, 32, 33, 47, 70):
        per_row = {"x": x[:num_rows].contiguous()}
        (got,) = run_ops(backend, fn, per_row, constants=constants)
        (want,) = run_ops(reference(), fn, per_row, constants=constants)
        assert torch.equal(got, want)


def test_linear_idle_rows_are_left_alone(backend):
    operands = _operands(16, 40, 64)
    got = _linear(backend, *operands, num_active=5)
    assert torch.equal(got[:5], _linear(reference(), *operands)[:5])
    assert torch.equal(got[5:], torch.full((11, 40), 77.0))


def test_linear_any_number_of_threads_gives_the_same(by_threads):
    operands = _operands(16, 300, 1024)
    results = [_linear(backend, *operands) for backend in by_threads]
    assert all(torch.equal(result, results[0]) for result in results)
