"""The wheel's own shape functions accept every call of Qwen3-14B's prefill and decode.

Nothing is computed: tensors are on device "meta". Shapes are of one layer and of the lm_head's
neighbours; each call is by keyword, as it must bind to the oldest and to the newest schemas.
"""

import math

import pytest
import torch
import torch_npu

BF16 = torch.bfloat16
HIDDEN, HEADS, KV_HEADS, D, INTERMEDIATE = 5120, 40, 8, 128, 17408
BLOCK, NUM_BLOCKS, MAX_BLOCKS = 128, 2000, 32


def empty(*shape, dtype=BF16):
    return torch.empty(shape, dtype=dtype, device="meta")


def is_like(tensor, shape, dtype):
    return (tuple(tensor.shape), tensor.dtype, tensor.device.type) == (shape, dtype, "meta")


@pytest.mark.parametrize("rows", [1, 16, 2048])
@pytest.mark.parametrize(
    ("out_features", "in_features"),
    [
        ((HEADS + 2 * KV_HEADS) * D, HIDDEN),
        (HIDDEN, HEADS * D),
        (2 * INTERMEDIATE, HIDDEN),
        (HIDDEN, INTERMEDIATE),
    ],
)
def test_linears(rows, out_features, in_features):
    x_q, x_scale = torch_npu.npu_dynamic_quant(empty(rows, in_features))
    assert is_like(x_q, (rows, in_features), torch.int8)
    assert is_like(x_scale, (rows,), torch.float32)
    y = torch_npu.npu_quant_matmul(
        x_q,
        empty(in_features, out_features, dtype=torch.int8),
        empty(out_features, dtype=torch.float32),
        pertoken_scale=x_scale,
        output_dtype=BF16,
    )
    assert is_like(y, (rows, out_features), BF16)


def test_forgotten_transpose_of_a_weight_is_refused_by_a_shape():
    with pytest.raises(RuntimeError):
        torch_npu.npu_quant_matmul(
            empty(16, HIDDEN, dtype=torch.int8),
            empty(7168, HIDDEN, dtype=torch.int8),
            empty(7168, dtype=torch.float32),
            pertoken_scale=empty(16, dtype=torch.float32),
            output_dtype=BF16,
        )


@pytest.mark.parametrize("rows", [1, 16, 2048])
def test_norms_and_activation(rows):
    x, gamma = empty(rows, HIDDEN), empty(HIDDEN)
    y, rstd = torch_npu.npu_rms_norm(x, gamma, epsilon=1e-6)
    assert is_like(y, (rows, HIDDEN), BF16)
    assert is_like(rstd, (rows, 1), torch.float32)
    y, _, total = torch_npu.npu_add_rms_norm(x, x, gamma, epsilon=1e-6)
    assert is_like(y, (rows, HIDDEN), BF16)
    assert is_like(total, (rows, HIDDEN), BF16)
    y_q, _, total, scale, _ = torch_npu.npu_add_rms_norm_dynamic_quant(
        x, x, gamma, epsilon=1e-6, output_mask=[True, False]
    )
    assert is_like(y_q, (rows, HIDDEN), torch.int8)
    assert is_like(total, (rows, HIDDEN), BF16)
    assert is_like(scale, (rows,), torch.float32)
    gate_up = empty(rows, 2 * INTERMEDIATE)
    assert is_like(torch_npu.npu_swiglu(gate_up, dim=-1), (rows, INTERMEDIATE), BF16)
    h_q, h_scale = torch_npu.npu_dequant_swiglu_quant(gate_up, activate_left=True, quant_mode=1)
    assert is_like(h_q, (rows, INTERMEDIATE), torch.int8)
    assert is_like(h_scale, (rows,), torch.float32)


@pytest.mark.parametrize("rows", [1, 16, 2048])
def test_head_norms_rotation_and_cache(rows):
    q, k = empty(rows, HEADS, D), empty(rows, KV_HEADS, D)
    for heads in (q, k):
        normed, _ = torch_npu.npu_rms_norm(heads, empty(D), epsilon=1e-6)
        assert is_like(normed, tuple(heads.shape), BF16)
        turned = torch_npu.npu_rotary_mul(heads, empty(rows, 1, D), empty(rows, 1, D))
        assert is_like(turned, tuple(heads.shape), BF16)
    k_q, k_scale = torch_npu.npu_dynamic_quant(k)
    assert is_like(k_scale, (rows, KV_HEADS), torch.float32)
    cache = empty(NUM_BLOCKS * KV_HEADS, BLOCK, 1, D, dtype=torch.int8)
    flat = k_q.view(rows * KV_HEADS, 1, D)
    slots = empty(rows * KV_HEADS, dtype=torch.int32)
    written = torch_npu.npu_scatter_pa_kv_cache(flat, flat, cache, cache, slots, cache_mode="Norm")
    assert written is None
    scales = empty(NUM_BLOCKS * KV_HEADS * BLOCK, 1, dtype=torch.float32)
    torch_npu.npu_scatter_nd_update_(scales, slots.view(-1, 1), k_scale.view(-1, 1))


def decode_arguments(rows):
    scale = empty(NUM_BLOCKS, KV_HEADS, BLOCK, dtype=torch.float32)
    return {
        "block_table": empty(rows, MAX_BLOCKS, dtype=torch.int32),
        "actual_seq_lengths_kv": [MAX_BLOCKS * BLOCK] * rows,
        "num_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "scale": 1 / math.sqrt(D),
        "input_layout": "BNSD",
        "block_size": BLOCK,
        "sparse_mode": 0,
        "key_antiquant_mode": 5,
        "value_antiquant_mode": 5,
        "key_antiquant_scale": scale,
        "key_antiquant_offset": scale,
        "value_antiquant_scale": scale,
        "value_antiquant_offset": scale,
    }


@pytest.mark.parametrize("rows", [1, 16])
def test_paged_decode_attention(rows):
    cache = empty(NUM_BLOCKS, KV_HEADS, BLOCK, D, dtype=torch.int8)
    q = empty(rows, HEADS, 1, D)
    out, _ = torch_npu.npu_fused_infer_attention_score(q, cache, cache, **decode_arguments(rows))
    assert is_like(out, (rows, HEADS, 1, D), BF16)


def test_paged_decode_attention_into_given_outputs():
    cache = empty(NUM_BLOCKS, KV_HEADS, BLOCK, D, dtype=torch.int8)
    q, lse = empty(16, HEADS, 1, D), empty(1, dtype=torch.float32)
    arguments = decode_arguments(16)
    workspace = torch_npu._npu_fused_infer_attention_score_get_max_workspace(
        q, cache, cache, **arguments
    )
    call = torch_npu.npu_fused_infer_attention_score.out
    call(q, cache, cache, **arguments, workspace=workspace, out=[torch.empty_like(q), lse])
    with pytest.raises(RuntimeError, match="shape"):
        call(q, cache, cache, **arguments, workspace=workspace, out=[q[:1], lse])


def test_cast_of_a_weight():
    weight = torch_npu.npu_format_cast(empty(HIDDEN, 7168, dtype=torch.int8), 29)
    assert is_like(weight, (HIDDEN, 7168), torch.int8)


def test_prefill_attention():
    k = empty(4096, KV_HEADS, D)
    out, _ = torch_npu.npu_fused_infer_attention_score(
        empty(2048, HEADS, D),
        k,
        k,
        actual_seq_lengths=[1024, 2048],
        actual_seq_lengths_kv=[2048, 4096],
        atten_mask=empty(2048, 2048, dtype=torch.bool),
        sparse_mode=3,
        num_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        scale=1 / math.sqrt(D),
        input_layout="TND",
    )
    assert is_like(out, (2048, HEADS, D), BF16)
