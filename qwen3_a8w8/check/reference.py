"""The float32 model, layer by layer from its checkpoint: slow, exact, small in memory.

Only what the checkpoint itself stores in int8 is quantised. The reference for a
quantised model, also used to name the layer where values stop being finite.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from qwen3_a8w8.checkpoint import names
from qwen3_a8w8.checkpoint.checkpoint import Checkpoint
from qwen3_a8w8.checkpoint.reader import FloatLinear
from qwen3_a8w8.quantization.int8 import dequantize
from qwen3_a8w8.quantization.qwen3_layer import INPUT_POINTS, layer_forward, rotary_tables

_READERS = {point: "/".join(linears) for point, linears in INPUT_POINTS.items()}


class FloatReference:
    """A checkpoint run in float32.

    Args:
        checkpoint: open. Weights of floating-point checkpoints are used as stored.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._config = checkpoint.config

    def final_hidden(self, sequences: Sequence[Sequence[int]]) -> list[Tensor]:
        """The input of the lm_head, `[num_tokens, hidden]` float32 for each sequence."""
        hidden = self._embed(sequences)
        rope = rotary_tables(self._config, max(map(len, sequences)))
        for layer in range(self._config.num_layers):
            weights = self._weights(layer)
            hidden = [layer_forward(self._config, weights, x, rope) for x in hidden]
        norm = self._checkpoint.tensor(names.FINAL_NORM)
        eps = self._config.rms_norm_eps
        return [x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps) * norm for x in hidden]

    def lm_head(self) -> Tensor:
        """`[vocab, hidden]`, rounded to bfloat16 at most."""
        is_tied = self._config.tie_word_embeddings
        return self._checkpoint.tensor(names.EMBED_TOKENS if is_tied else names.LM_HEAD)

    def first_not_finite(self, token_ids: Sequence[int]) -> str | None:
        """Where NaN or infinity first appears, such as "layer 3, input of down_proj"; or None."""
        (hidden,) = self._embed([token_ids])
        rope = rotary_tables(self._config, len(token_ids))
        for layer in range(self._config.num_layers):
            found: list[str] = []

            def observe(point: str, x: Tensor, found: list[str] = found) -> None:
                if not bool(torch.isfinite(x).all()):
                    found.append(f"input of {_READERS[point]}")

            hidden = layer_forward(self._config, self._weights(layer), hidden, rope, observe)
            if not bool(torch.isfinite(hidden).all()):
                found.append("output")
            if found:
                return f"layer {layer}, {found[0]}"
        return None

    def _embed(self, sequences: Sequence[Sequence[int]]) -> list[Tensor]:
        table = self._checkpoint.tensor(names.EMBED_TOKENS)
        return [table[torch.tensor(list(ids))].float() for ids in sequences]

    def _weights(self, layer: int) -> dict[str, Tensor]:
        checkpoint = self._checkpoint
        weights = {
            name: checkpoint.tensor(names.norm_tensor(layer, name))
            for name in names.LAYER_NORM_NAMES
        }
        for name in names.LINEAR_NAMES:
            linear = checkpoint.linear(layer, name, is_quantized_on_load=False)
            weights[name] = (
                linear.weight.float()
                if isinstance(linear, FloatLinear)
                else dequantize(linear.w_q, linear.w_scale)
            )
        return weights


def log_softmax_rows(hidden: Tensor, lm_head: Tensor, *, rows: int = 32) -> Iterator[Tensor]:
    """Log-probabilities in chunks of rows, so that `[num_tokens, vocab]` is never allocated.

    Args:
        hidden: `[num_tokens, hidden]` float32.
        lm_head: `[vocab, hidden]`.
        rows: tokens per chunk.

    Yields:
        `[rows or fewer, vocab]` float32.
    """
    table = lm_head.float()
    for chunk in torch.split(hidden, rows):
        yield torch.log_softmax(chunk @ table.T, dim=-1)
