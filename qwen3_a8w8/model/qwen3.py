"""Qwen3 dense in A8W8: the three callables prefill, decode and sample.

Their annotations are the contract (see `kernels/signature.py`); their bodies are
recorded once per backend. Doesn't know about devices or checkpoints: constants are
named here and bound by `runner/model_loader.py`.

Source: "Qwen3 Technical Report", 2025, section 2 (architecture).
"""

from __future__ import annotations

import math
from typing import Annotated

from qwen3_a8w8.config import DECODE_BATCH_SIZES, MAX_LOGPROBS, TOKENS_PER_ROW
from qwen3_a8w8.errors import UnsupportedBatchSizeError
from qwen3_a8w8.experimental import INT8_LM_HEAD
from qwen3_a8w8.kernels.ops import SAMPLE_CONTROLS, KvCache, Ops
from qwen3_a8w8.kernels.program import ConstLayout, Ref
from qwen3_a8w8.kernels.signature import (
    BFLOAT16,
    FLOAT32,
    INT8,
    INT32,
    INT64,
    Dim,
    In,
    InOut,
    Out,
    Static,
    StaticDType,
)
from qwen3_a8w8.model.linears import GATE_UP_PARTS, QKV_PARTS, LayerLinears

BATCH = Dim("BATCH", choices=DECODE_BATCH_SIZES, error=UnsupportedBatchSizeError)
ROWS = Dim(
    "ROWS",
    choices=tuple(sorted({*DECODE_BATCH_SIZES, TOKENS_PER_ROW})),
    error=UnsupportedBatchSizeError,
)
"""Tokens of a decode dispatch: one per sequence, or a batch of 1 with its draft tokens."""
PREFILL_TOKENS = Dim("PREFILL_TOKENS")
NUM_SEQS = Dim("NUM_SEQS")
NUM_LOGITS = Dim("NUM_LOGITS", low=0)
NUM_BLOCKS = Dim("NUM_BLOCKS")
MAX_BLOCKS_PER_SEQ = Dim("MAX_BLOCKS_PER_SEQ")
NUM_BIASES = Dim("NUM_BIASES", low=0)
NUM_HISTORY = Dim("NUM_HISTORY", low=0)
NUM_ALLOWED_WORDS = Dim("NUM_ALLOWED_WORDS", low=0)

NUM_LAYERS = Static("NUM_LAYERS")
KV_HEADS = Static("KV_HEADS")
BLOCK_SIZE = Static("BLOCK_SIZE")
HEAD_DIM = Static("HEAD_DIM")
VOCAB = Static("VOCAB")

KV_DTYPE = StaticDType("KV_ITEM_BYTES", (INT8, BFLOAT16))
SCALES_PER_BLOCK = Static("SCALES_PER_BLOCK", low=0)
"""Scales of a block and KV head: one per token, or none if the cache isn't quantised."""

Cache = Annotated[Ref, InOut(KV_DTYPE, NUM_LAYERS, NUM_BLOCKS, KV_HEADS, BLOCK_SIZE, HEAD_DIM)]
CacheScale = Annotated[Ref, InOut(FLOAT32, NUM_LAYERS, NUM_BLOCKS, KV_HEADS, SCALES_PER_BLOCK)]
TokenInt = Annotated[Ref, In(INT32, ROWS)]
RowInt = Annotated[Ref, In(INT32, BATCH)]
RowFloat = Annotated[Ref, In(FLOAT32, BATCH)]
RowRange = Annotated[Ref, In(INT32, BATCH, 2)]
ActiveRows = Annotated[Ref, In(INT32, 1, counts=BATCH)]


def kv_cache_dims(block_size: int, *, is_bf16: bool) -> dict[str, int]:
    """Static dims of the KV cache by the names that the signatures use.

    Args:
        block_size: tokens per block.
        is_bf16: elements are bfloat16 without scales, not int8 with scales.
    """
    return {
        "BLOCK_SIZE": block_size,
        "KV_ITEM_BYTES": BFLOAT16.itemsize if is_bf16 else INT8.itemsize,
        "SCALES_PER_BLOCK": 0 if is_bf16 else block_size,
    }


def prefill(
    ops: Ops,
    token_ids: Annotated[Ref, In(INT32, PREFILL_TOKENS)],
    positions: Annotated[Ref, In(INT32, PREFILL_TOKENS)],
    context_lens: Annotated[Ref, In(INT32, PREFILL_TOKENS)],
    seq_index: Annotated[Ref, In(INT32, PREFILL_TOKENS)],
    slot_mapping: Annotated[Ref, In(INT32, PREFILL_TOKENS)],
    block_tables: Annotated[Ref, In(INT32, NUM_SEQS, MAX_BLOCKS_PER_SEQ)],
    logits_indices: Annotated[Ref, In(INT32, NUM_LOGITS)],
    k_cache: Cache,
    v_cache: Cache,
    k_scale: CacheScale,
    v_scale: CacheScale,
    logits: Annotated[Ref, Out(FLOAT32, NUM_LOGITS, VOCAB)],
) -> Ref:
    """Computes packed chunks of several sequences, and the selected logits.

    Args:
        ops: the op set.
        token_ids: the chunks' ids, one sequence after the other.
        positions: position of each token in its sequence.
        context_lens: positions + 1.
        seq_index: row of `block_tables` of each token, ascending.
        slot_mapping: cache slot of each token's K and V.
        block_tables: block ids of each sequence; unused entries are the scratch block.
        logits_indices: indices of the tokens whose logits are computed; may be empty.
        k_cache, v_cache, k_scale, v_scale: the paged cache, updated.
        logits: written.

    Returns:
        `logits`.
    """
    cache = KvCache(k_cache, v_cache, k_scale, v_scale)
    hidden = embed_tokens(ops, token_ids)
    for layer in range(ops.dims["NUM_LAYERS"]):
        hidden = decoder_layer(
            ops,
            layer,
            hidden,
            positions,
            slot_mapping,
            cache,
            block_tables,
            context_lens,
            seq_index,
        )
    return output_logits(ops, ops.gather_rows(hidden, logits_indices), logits)


def decode(
    ops: Ops,
    token_ids: Annotated[Ref, In(INT32, BATCH, TOKENS_PER_ROW)],
    num_active: Annotated[Ref, In(INT32, 1, counts=ROWS)],
    positions: TokenInt,
    seq_lens: TokenInt,
    slot_mapping: TokenInt,
    block_tables: Annotated[Ref, In(INT32, ROWS, MAX_BLOCKS_PER_SEQ)],
    k_cache: Cache,
    v_cache: Cache,
    k_scale: CacheScale,
    v_scale: CacheScale,
    logits: Annotated[Ref, Out(FLOAT32, ROWS, VOCAB)],
) -> Ref:
    """Computes one token of each live row, or one sequence's token and draft tokens after it.

    In a batch of 1 there may be 8 rows (ROWS): row r then is column r of `token_ids`, a token of
    the same sequence one position later. By batch invariance a row's logits equal those of a
    separate dispatch if the tokens before it are correct.

    Args:
        ops: the op set.
        token_ids: column 0 is the row's token; the others are draft tokens, or 0.
        num_active: number of live rows; they come first.
        positions: position of each row's token.
        seq_lens: positions + 1 for live rows, 0 for idle ones.
        slot_mapping: cache slot of each row's token; a scratch slot for idle rows.
        block_tables: block ids of each row; unused entries are the scratch block.
        k_cache, v_cache, k_scale, v_scale: the paged cache, updated.
        logits: written for live rows.

    Returns:
        `logits`.
    """
    del num_active  # the signature makes it the live count of ROWS
    cache = KvCache(k_cache, v_cache, k_scale, v_scale)
    hidden = embed_tokens(ops, token_ids, positions)
    for layer in range(ops.dims["NUM_LAYERS"]):
        hidden = decoder_layer(
            ops, layer, hidden, positions, slot_mapping, cache, block_tables, seq_lens, None
        )
    return output_logits(ops, hidden, logits)


def sample(
    ops: Ops,
    logits: Annotated[Ref, In(FLOAT32, BATCH, VOCAB)],
    num_active: ActiveRows,
    temperature: RowFloat,
    top_k: RowInt,
    top_p: RowFloat,
    min_p: RowFloat,
    seeds: Annotated[Ref, In(INT64, BATCH)],
    positions: RowInt,
    repetition_penalty: RowFloat,
    presence_penalty: RowFloat,
    frequency_penalty: RowFloat,
    num_logprobs: RowInt,
    bias_range: RowRange,
    bias_ids: Annotated[Ref, In(INT32, NUM_BIASES)],
    bias_values: Annotated[Ref, In(FLOAT32, NUM_BIASES)],
    history_range: RowRange,
    history_ids: Annotated[Ref, In(INT32, NUM_HISTORY)],
    history_counts: Annotated[Ref, In(INT32, NUM_HISTORY)],
    allowed_start: RowInt,
    allowed_words: Annotated[Ref, In(INT32, NUM_ALLOWED_WORDS)],
    sampled_ids: Annotated[Ref, Out(INT32, BATCH, TOKENS_PER_ROW)],
    logprobs: Annotated[Ref, Out(FLOAT32, BATCH)],
    top_ids: Annotated[Ref, Out(INT32, BATCH, MAX_LOGPROBS)],
    top_logprobs: Annotated[Ref, Out(FLOAT32, BATCH, MAX_LOGPROBS)],
) -> tuple[Ref, Ref, Ref, Ref]:
    """Draws one token per live row; `Ops.sample` documents the arguments.

    `positions` is the position of the drawn token.
    """
    del num_active
    arguments = locals()
    controls = {name: arguments[name] for name in SAMPLE_CONTROLS}
    return ops.sample(logits, controls, sampled_ids, logprobs, top_ids, top_logprobs)


def embed_tokens(ops: Ops, token_ids: Ref, rows: Ref | None = None) -> Ref:
    """The residual stream before layer 0; `rows` sets the number of tokens, see `Ops.embed`."""
    shape = (ops.dims["VOCAB"], ops.dims["HIDDEN"])
    return ops.embed(token_ids, ops.constant("embed_tokens", BFLOAT16, shape), rows)


def decoder_layer(
    ops: Ops,
    layer: int,
    hidden: Ref,
    positions: Ref,
    slot_mapping: Ref,
    cache: KvCache,
    block_tables: Ref,
    context_lens: Ref,
    seq_index: Ref | None,
) -> Ref:
    """The residual stream after one more layer; K and V are written to the cache."""
    dims, eps = ops.dims, ops.options["rms_norm_eps"]
    width, head_dim = dims["HIDDEN"], dims["HEAD_DIM"]
    prefix = f"layers.{layer}"

    def norm(name: str, size: int) -> Ref:
        return ops.constant(f"{prefix}.{name}", FLOAT32, (size,))

    linears = LayerLinears(ops, layer)
    normed = linears.rms_norm(QKV_PARTS, hidden, norm("input_norm", width), eps)
    q = ops.qk_norm_rope_cache(
        linears.apply("qkv_proj", QKV_PARTS, normed),
        norm("q_norm", head_dim),
        norm("k_norm", head_dim),
        ops.constant("rope", FLOAT32, (dims["MAX_POSITIONS"], head_dim)),
        positions,
        slot_mapping,
        cache,
        layer=layer,
        eps=eps,
    )
    attended = ops.attention(
        q,
        cache,
        block_tables,
        context_lens,
        seq_index,
        layer=layer,
        scale=1.0 / math.sqrt(head_dim),
    )
    hidden = linears.apply_add("o_proj", linears.quantize("o_proj", attended), hidden)

    normed = linears.rms_norm(GATE_UP_PARTS, hidden, norm("post_attention_norm", width), eps)
    gate_up = linears.apply("gate_up_proj", GATE_UP_PARTS, normed)
    return linears.apply_add("down_proj", linears.silu_mul("down_proj", gate_up), hidden)


def output_logits(ops: Ops, hidden: Ref, logits: Ref) -> Ref:
    """Logits of the rows of the residual stream after the last layer."""
    dims = ops.dims
    norm = ops.constant("final_norm", FLOAT32, (dims["HIDDEN"],))
    if INT8_LM_HEAD in ops.options:
        x_q, x_scale = ops.rms_norm_quant(hidden, norm, ops.options["rms_norm_eps"])
        weights = ops.linear_weight("lm_head", dims["VOCAB"], dims["HIDDEN"])
        return ops.linear(x_q, x_scale, weights, logits)
    x = ops.rms_norm(hidden, norm, ops.options["rms_norm_eps"])
    weight = ops.constant("lm_head", BFLOAT16, (dims["VOCAB"], dims["HIDDEN"]), ConstLayout.LM_HEAD)
    return ops.lm_head(x, weight, logits)
