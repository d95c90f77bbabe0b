import pytest
import torch

from qwen3_a8w8.kernels.ops import KvCache
from tests.kernels.paged_cache import CACHE_NAMES, random_bf16_cache, random_cache
from tests.kernels.single_op import SENTINEL, assert_close, reference, run_ops


def _rope(head_dim, num_positions=64):
    angles = torch.arange(num_positions)[:, None] * 1e4 ** -(
        torch.arange(0, head_dim, 2) / head_dim
    )
    return torch.cat((angles.cos(), angles.sin()), dim=1).float()


def _run(
    backend,
    num_heads,
    kv_heads,
    head_dim,
    num_tokens,
    num_active=None,
    rows=None,
    make_cache=random_cache,
):
    gen = torch.Generator().manual_seed(1)
    cache = make_cache(2, 5, kv_heads, 16, head_dim)
    qkv = torch.randn(num_tokens, (num_heads + 2 * kv_heads) * head_dim, generator=gen)
    positions = torch.randint(0, 64, (num_tokens,), generator=gen, dtype=torch.int32)
    slots = torch.randperm(80, generator=gen)[:num_tokens].int()
    norms = {
        "q_norm": torch.rand(head_dim, generator=gen) + 0.5,
        "k_norm": torch.rand(head_dim, generator=gen) + 0.5,
    }
    chosen = slice(None) if rows is None else rows

    def fn(ops, refs):
        q = ops.qk_norm_rope_cache(
            refs["qkv"],
            *(refs[name] for name in (*norms, "rope", "positions", "slots")),
            KvCache(*(refs[name] for name in CACHE_NAMES)),
            layer=1,
            eps=1e-6,
        )
        return (q,)

    per_row = {"qkv": qkv, "positions": positions, "slots": slots}
    per_row = {name: tensor[chosen].contiguous() for name, tensor in per_row.items()}
    others = {**norms, "rope": _rope(head_dim), **cache}
    (q,) = run_ops(backend, fn, per_row, others, updated=CACHE_NAMES, num_active=num_active)
    return q, cache


@pytest.mark.parametrize(
    ("num_heads", "kv_heads", "head_dim"), [(4, 2, 128), (8, 8, 64), (3, 1, 24), (2, 1, 6)]
)
def test_qk_norm_rope_cache_matches_reference(backend, num_heads, kv_heads, head_dim):
    for num_tokens in (1, 5, 70):
        q, cache = _run(backend, num_heads, kv_heads, head_dim, num_tokens)
        want_q, want = _run(reference(), num_heads, kv_heads, head_dim, num_tokens)
        assert_close(q, want_q, 1e-6)
        for name in ("k_scale", "v_scale"):
            assert_close(cache[name], want[name], 1e-6)
        assert torch.equal(cache["v"], want["v"])
        step = (cache["k"].int() - want["k"].int()).abs()
        assert step.max() <= 1
        assert step.sum() <= max(1, 0.001 * num_tokens * kv_heads * head_dim)


@pytest.mark.parametrize("head_dim", [128, 24, 6])
def test_qk_norm_rope_cache_in_bf16_matches_reference(backend, head_dim):
    for num_tokens in (1, 70):
        q, cache = _run(backend, 4, 2, head_dim, num_tokens, make_cache=random_bf16_cache)
        want_q, want = _run(reference(), 4, 2, head_dim, num_tokens, make_cache=random_bf16_cache)
        assert_close(q, want_q, 1e-6)
        assert torch.equal(cache["v"], want["v"])
        # A key on a rounding boundary may fall to either side: one step is 2^-8 of it.
        assert_close(cache["k"], want["k"], 2**-8)
        assert (cache["k"] != want["k"]).sum() <= 0.001 * want["k"].numel()


@pytest.mark.parametrize("make_cache", [random_cache, random_bf16_cache])
def test_qk_norm_rope_cache_row_alone_equals_row_in_batch(backend, make_cache):
    q, cache = _run(backend, 4, 2, 128, 17, make_cache=make_cache)
    untouched = make_cache(2, 5, 2, 16, 128)
    for row in range(17):
        alone_q, alone = _run(
            backend, 4, 2, 128, 17, rows=slice(row, row + 1), make_cache=make_cache
        )
        assert torch.equal(alone_q[0], q[row])
        for name in CACHE_NAMES:
            changed = alone[name] != untouched[name]
            assert torch.equal(alone[name][changed], cache[name][changed])


def test_qk_norm_rope_cache_idle_rows_write_nothing(backend):
    q, cache = _run(backend, 4, 2, 128, 16, num_active=3)
    _, of_three = _run(backend, 4, 2, 128, 16, rows=slice(0, 3))
    assert torch.equal(q[3:], torch.full_like(q[3:], float(SENTINEL)))
    assert all(torch.equal(cache[name], of_three[name]) for name in CACHE_NAMES)
