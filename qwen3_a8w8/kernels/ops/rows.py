"""Ops on rows: embedding, norms, quantisation, the gated activation, copies."""

from __future__ import annotations

from collections.abc import Sequence

from qwen3_a8w8.kernels.ops.recorder import Recorder, static_extent
from qwen3_a8w8.kernels.program import Ref
from qwen3_a8w8.kernels.signature import BFLOAT16, FLOAT32, INT32

QUANT_EPS = 1e-10
"""Smallest absolute maximum of a quantised row, so that a zero row has a finite scale."""


class RowOps(Recorder):
    """One row in, one row out (notation and rules: see the package)."""

    def embed(self, token_ids: Ref, table: Ref, rows: Ref | None = None) -> Ref:
        """Rows of the embedding: y[t] = float32(table[token_ids[t]]).

        Args:
            token_ids: [T] or [B, 8] int32; of the latter column 0 counts.
            table: [vocab, H] bfloat16.
            rows: [T] of any dtype, of which only T is used; needed if T isn't the first extent
                of `token_ids`. [1, 8] ids then give their first T columns, and [B, 8] ids with
                B > 1 give column 0 of their first T rows.

        Returns:
            [T, H] float32.
        """
        self._expect("embed", token_ids, INT32, None)
        self._expect("embed", table, BFLOAT16, (None, None))
        leading = token_ids if rows is None else rows
        out = self._temp("embed", FLOAT32, (leading.shape[0], table.shape[1]))
        inputs = (token_ids, table) if rows is None else (token_ids, table, rows)
        return self._node("embed", inputs, out)

    def copy(self, x: Ref, out: Ref) -> Ref:
        """Copies a tensor into an argument of the callable.

        Args:
            x: [T, H] float32.
            out: [T, H] float32, written.

        Returns:
            `out`.
        """
        self._expect("copy", x, FLOAT32, (None, None))
        self._expect("copy", out, FLOAT32, x.shape)
        return self._node("copy", (x,), out)

    def rms_norm(self, x: Ref, weight: Ref, eps: float) -> Ref:
        """y = x / sqrt(mean(x^2) + eps) * weight, per row, in float32.

        Args:
            x: [T, H] float32.
            weight: [H] float32.
            eps: added to the mean square.

        Returns:
            [T, H] float32.  Source: Zhang and Sennrich 2019, eq. 4.
        """
        self._expect("rms_norm", x, FLOAT32, (None, None))
        self._expect("rms_norm", weight, FLOAT32, (x.shape[1],))
        out = self._temp("rms_norm", FLOAT32, x.shape)
        return self._node("rms_norm", (x, weight), out, eps=eps)

    def rms_norm_quant(self, x: Ref, weight: Ref, eps: float) -> tuple[Ref, Ref]:
        """`rms_norm`, then each row quantised.

        Args:
            x: [T, H] float32.
            weight: [H] float32.
            eps: added to the mean square.

        Returns:
            x_q [T, H] int8 and x_scale [T] float32.
        """
        self._expect("rms_norm_quant", x, FLOAT32, (None, None))
        self._expect("rms_norm_quant", weight, FLOAT32, (x.shape[1],))
        outs = self._quantised("rms_norm_quant", x.shape)
        self._node("rms_norm_quant", (x, weight), *outs, eps=eps)
        return outs

    def quantize(self, x: Ref) -> tuple[Ref, Ref]:
        """Quantises each row.

        Args:
            x: [T, N] float32.

        Returns:
            x_q [T, N] int8 and x_scale [T] float32.
        """
        self._expect("quantize", x, FLOAT32, (None, None))
        outs = self._quantised("quantize", x.shape)
        self._node("quantize", (x,), *outs)
        return outs

    def silu_mul_quant(self, gate_up: Ref) -> tuple[Ref, Ref]:
        """h = silu(gate) * up per row, then quantised; silu(x) = x / (1 + exp(-x)).

        Args:
            gate_up: [T, 2 * I] float32, gate in the first half.

        Returns:
            h_q [T, I] int8 and h_scale [T] float32.
        """
        self._expect("silu_mul_quant", gate_up, FLOAT32, (None, None))
        half = static_extent(gate_up.shape[1]) // 2
        outs = self._quantised("silu_mul_quant", (gate_up.shape[0], half))
        self._node("silu_mul_quant", (gate_up,), *outs)
        return outs

    def silu_mul(self, gate_up: Ref) -> Ref:
        """h = silu(gate) * up per row, as in `silu_mul_quant`, but not quantised.

        Args:
            gate_up: [T, 2 * I] float32, gate in the first half.

        Returns:
            [T, I] float32.
        """
        self._expect("silu_mul", gate_up, FLOAT32, (None, None))
        half = static_extent(gate_up.shape[1]) // 2
        out = self._temp("silu_mul", FLOAT32, (gate_up.shape[0], half))
        return self._node("silu_mul", (gate_up,), out)

    def concat(self, parts: Sequence[Ref]) -> Ref:
        """Concatenates tensors along their columns.

        Args:
            parts: at least one, each [T, N_i] float32.

        Returns:
            [T, sum of N_i] float32.
        """
        for part in parts:
            self._expect("concat", part, FLOAT32, (parts[0].shape[0], None))
        width = sum(static_extent(part.shape[1]) for part in parts)
        out = self._temp("concat", FLOAT32, (parts[0].shape[0], width))
        return self._node("concat", tuple(parts), out)

    def gather_rows(self, x: Ref, indices: Ref) -> Ref:
        """y[s] = x[indices[s]].

        Args:
            x: [T, H] float32.
            indices: [S] int32.

        Returns:
            [S, H] float32.
        """
        self._expect("gather_rows", x, FLOAT32, (None, None))
        self._expect("gather_rows", indices, INT32, (None,))
        out = self._temp("gather_rows", FLOAT32, (indices.shape[0], x.shape[1]))
        return self._node("gather_rows", (x, indices), out)
