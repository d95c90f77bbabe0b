"""Prefill in several dispatches, a group of layers in each.

Computes the same as `qwen3.prefill`, with the residual stream in an argument between
the dispatches: `embed`, then `layers` once per group, then `logits`. The options
LAYER_BEGIN and LAYER_END are a group's first layer and the layer after its last.
"""

from __future__ import annotations

from typing import Annotated

from qwen3_a8w8.kernels.ops import KvCache, Ops
from qwen3_a8w8.kernels.program import Ref
from qwen3_a8w8.kernels.signature import FLOAT32, INT32, In, InOut, Out, Static
from qwen3_a8w8.model.qwen3 import (
    MAX_BLOCKS_PER_SEQ,
    NUM_LOGITS,
    NUM_SEQS,
    PREFILL_TOKENS,
    VOCAB,
    Cache,
    CacheScale,
    decoder_layer,
    embed_tokens,
    output_logits,
)

HIDDEN = Static("HIDDEN")
LAYER_BEGIN, LAYER_END = "layer_begin", "layer_end"

PerToken = Annotated[Ref, In(INT32, PREFILL_TOKENS)]


def embed(
    ops: Ops,
    token_ids: PerToken,
    hidden: Annotated[Ref, Out(FLOAT32, PREFILL_TOKENS, HIDDEN)],
) -> Ref:
    """Starts a prefill.

    Args:
        ops: the op set.
        token_ids: the chunks' ids, one sequence after the other.
        hidden: written, the residual stream before layer 0.

    Returns:
        `hidden`.
    """
    return ops.copy(embed_tokens(ops, token_ids), hidden)


def layers(
    ops: Ops,
    positions: PerToken,
    context_lens: PerToken,
    seq_index: PerToken,
    slot_mapping: PerToken,
    block_tables: Annotated[Ref, In(INT32, NUM_SEQS, MAX_BLOCKS_PER_SEQ)],
    k_cache: Cache,
    v_cache: Cache,
    k_scale: CacheScale,
    v_scale: CacheScale,
    hidden: Annotated[Ref, InOut(FLOAT32, PREFILL_TOKENS, HIDDEN)],
) -> tuple[Ref, ...]:
    """Computes all tokens through the layers [LAYER_BEGIN, LAYER_END).

    Args:
        ops: the op set.
        positions: position of each token in its sequence.
        context_lens: positions + 1.
        seq_index: row of `block_tables` of each token, ascending.
        slot_mapping: cache slot of each token's K and V.
        block_tables: block ids of each sequence.
        k_cache, v_cache, k_scale, v_scale: the paged cache, updated.
        hidden: the residual stream, updated.

    Returns:
        Nothing: no argument is only written.
    """
    cache = KvCache(k_cache, v_cache, k_scale, v_scale)
    x = hidden
    for layer in range(int(ops.options[LAYER_BEGIN]), int(ops.options[LAYER_END])):
        x = decoder_layer(
            ops, layer, x, positions, slot_mapping, cache, block_tables, context_lens, seq_index
        )
    ops.copy(x, hidden)
    return ()


def logits(
    ops: Ops,
    hidden: Annotated[Ref, In(FLOAT32, PREFILL_TOKENS, HIDDEN)],
    logits_indices: Annotated[Ref, In(INT32, NUM_LOGITS)],
    logits: Annotated[Ref, Out(FLOAT32, NUM_LOGITS, VOCAB)],
) -> Ref:
    """Ends a prefill.

    Args:
        ops: the op set.
        hidden: the residual stream after the last layer.
        logits_indices: indices of the tokens whose logits are computed; may be empty.
        logits: written.

    Returns:
        `logits`.
    """
    return output_logits(ops, ops.gather_rows(hidden, logits_indices), logits)
