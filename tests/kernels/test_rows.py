import pytest
import torch

from tests.kernels.single_op import SENTINEL, assert_close, reference, run_ops

WIDTHS = [1, 3, 16, 31, 64, 100, 1024, 1037]


def _randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _rms_norm(backend, x, weight, num_active=None):
    def fn(ops, refs):
        return (ops.rms_norm(refs["x"], ops.constant("w", refs["x"].dtype, weight.shape), 1e-6),)

    return run_ops(backend, fn, {"x": x}, constants={"w": weight}, num_active=num_active)[0]


def _quantised(backend, build, x, constants=None, num_active=None):
    return run_ops(
        backend,
        lambda ops, refs: build(ops, refs["x"]),
        {"x": x},
        constants=constants,
        num_active=num_active,
    )


def _assert_quantised_close(got, want):
    # The kernel's float sums may differ in the last bit, which moves a value across a rounding
    # boundary now and then: by one step, and rarely.
    (q, scale), (want_q, want_scale) = got, want
    assert_close(scale, want_scale, 1e-6)
    step = (q.int() - want_q.int()).abs()
    assert step.max() <= 1
    assert step.sum() <= max(1, 0.002 * step.numel())


@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm_matches_reference(backend, width):
    x, weight = _randn(5, width), _randn(width, seed=1)
    assert_close(_rms_norm(backend, x, weight), _rms_norm(reference(), x, weight), 1e-6)


def test_rms_norm_row_alone_equals_row_in_batch(by_threads):
    x, weight = _randn(17, 1037), _randn(1037, seed=1)
    results = [_rms_norm(backend, x, weight) for backend in by_threads]
    assert all(torch.equal(result, results[0]) for result in results)
    for row in range(17):
        alone = _rms_norm(by_threads[0], x[row : row + 1].contiguous(), weight)
        assert torch.equal(alone[0], results[0][row])


def test_rms_norm_idle_rows_are_left_alone(backend):
    got = _rms_norm(backend, _randn(16, 64), torch.ones(64), num_active=3)
    assert torch.equal(got[3:], torch.full((13, 64), float(SENTINEL)))


@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm_quant_matches_reference(backend, width):
    weight = _randn(width, seed=1)

    def build(ops, x):
        return ops.rms_norm_quant(x, ops.constant("w", x.dtype, (width,)), 1e-6)

    x = _randn(5, width)
    got, want = (_quantised(b, build, x, {"w": weight}) for b in (backend, reference()))
    _assert_quantised_close(got, want)


@pytest.mark.parametrize("width", WIDTHS)
def test_quantize_equals_reference_bit_for_bit(backend, width):
    x = _randn(9, width) * torch.logspace(-12, 12, 9).unsqueeze(1)
    x[4] = 0
    got, want = (_quantised(b, lambda ops, x: ops.quantize(x), x) for b in (backend, reference()))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_quantize_ties_go_to_even(backend):
    x = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 63.5]])
    q, scale = _quantised(backend, lambda ops, x: ops.quantize(x), x)
    assert scale.tolist() == [1.0]
    assert q.tolist() == [[127, 0, 2, 2, 0, -2, -2, 64]]


@pytest.mark.parametrize("seed", range(4))
def test_quantize_next_to_ties_equals_division(backend, seed):
    # Numbers within three units in the last place of every tie of a row's scale: a quotient that
    # isn't rounded as a division is would fall on the other side of some.
    gen = torch.Generator().manual_seed(seed)
    largest = torch.exp2(torch.rand(1000, 1, generator=gen) * 70 - 30)
    scale = largest / 127
    ties = (torch.arange(-127, 127).repeat_interleave(7) + 0.5) * scale
    units = torch.arange(-3, 4, dtype=torch.int32).repeat(254)
    near = (ties.view(torch.int32) + units).view(torch.float32).clamp(-largest, largest)
    x = torch.cat([largest, near], dim=1)
    q, got_scale = _quantised(backend, lambda ops, x: ops.quantize(x), x)
    assert torch.equal(got_scale, scale.view(-1))
    assert torch.equal(q, (x / scale).round().clamp(-127, 127).to(torch.int8))


@pytest.mark.parametrize("width", WIDTHS)
def test_silu_mul_quant_matches_reference(backend, width):
    gate_up = _randn(5, 2 * width) * 4
    got, want = (
        _quantised(b, lambda ops, x: ops.silu_mul_quant(x), gate_up) for b in (backend, reference())
    )
    _assert_quantised_close(got, want)


def test_silu_mul_quant_far_arguments_saturate(backend):
    # silu(-200) underflows to 0 and silu(100) is 100: no NaN from infinity over infinity.
    gate_up = torch.tensor([[-200.0, 100.0, 0.0, -1e30, 1.0, 1.0, 1.0, 1.0]])
    q, scale = _quantised(backend, lambda ops, x: ops.silu_mul_quant(x), gate_up)
    assert q.tolist() == [[0, 127, 0, 0]]
    assert scale.item() == pytest.approx(100 / 127)


@pytest.mark.parametrize("columns", [None, 8])
def test_embed_equals_reference_bit_for_bit(backend, columns):
    table = _randn(50, 37).bfloat16()
    ids = torch.randint(0, 50, (11,), dtype=torch.int32)
    if columns:
        ids = torch.stack([ids, *[torch.zeros_like(ids)] * (columns - 1)], dim=1).contiguous()

    def fn(ops, refs):
        return (ops.embed(refs["ids"], refs["table"]),)

    for num_active in (None, 4):
        (got,) = run_ops(backend, fn, {"ids": ids}, {"table": table}, num_active=num_active)
        (want,) = run_ops(reference(), fn, {"ids": ids}, {"table": table}, num_active=num_active)
        assert torch.equal(got, want)


def test_gather_rows_equals_reference_bit_for_bit(backend):
    def fn(ops, refs):
        return (ops.gather_rows(refs["x"], refs["indices"]),)

    indices = torch.tensor([4, 0, 4, 2], dtype=torch.int32)
    (got,) = run_ops(backend, fn, {"x": _randn(5, 19)}, {"indices": indices})
    assert torch.equal(got, _randn(5, 19)[indices.long()])


def _lm_head(backend, x, weight, num_active=None):
    out = torch.full((x.shape[0], weight.shape[0]), float(SENTINEL))

    def fn(ops, refs):
        ops.lm_head(refs["x"], refs["w"], refs["out"])
        return ()

    run_ops(
        backend,
        fn,
        {"x": x, "out": out},
        {"w": weight},
        updated=("out",),
        num_active=num_active,
    )
    return out


@pytest.mark.parametrize("width", [1, 2, 31, 64, 100, 515])
def test_lm_head_matches_reference(backend, width):
    for num_rows in (1, 3, 16):
        x, weight = _randn(num_rows, width), _randn(203, width, seed=1).bfloat16()
        assert_close(_lm_head(backend, x, weight), _lm_head(reference(), x, weight), 1e-5)


def test_lm_head_row_alone_equals_row_in_batch(by_threads):
    x, weight = _randn(17, 515), _randn(203, 515, seed=1).bfloat16()
    results = [_lm_head(backend, x, weight) for backend in by_threads]
    assert all(torch.equal(result, results[0]) for result in results)
    for row in range(17):
        alone = _lm_head(by_threads[0], x[row : row + 1].contiguous(), weight)
        assert torch.equal(alone[0], results[0][row])
    for num_rows in range(2, 17):
        some = _lm_head(by_threads[1], x[:num_rows].contiguous(), weight)
        assert torch.equal(some, results[0][:num_rows])


def test_lm_head_idle_rows_are_left_alone(backend):
    got = _lm_head(backend, _randn(16, 64), _randn(50, 64).bfloat16(), num_active=6)
    assert torch.equal(got[6:], torch.full((10, 50), float(SENTINEL)))
    assert not torch.equal(got[5], torch.full((50,), float(SENTINEL)))
