"""Linear layers: int8 with exact sums, and bf16 where weights aren't quantised."""

from __future__ import annotations

from qwen3_a8w8.kernels.ops.recorder import Recorder
from qwen3_a8w8.kernels.program import ConstLayout, Ref
from qwen3_a8w8.kernels.signature import BFLOAT16, FLOAT32, INT8


class LinearWeight:
    """An int8 linear's constants: w_q [out, in] int8 and w_scale [out] float32."""

    __slots__ = ("w_q", "w_scale")

    def __init__(self, w_q: Ref, w_scale: Ref) -> None:
        self.w_q = w_q
        self.w_scale = w_scale


class LinearOps(Recorder):
    """Products with weights (notation and rules: see the package)."""

    def linear_weight(self, name: str, out_features: int, in_features: int) -> LinearWeight:
        """Constants `name.w_q` [out, in] int8 and `name.w_scale` [out] float32."""
        return LinearWeight(
            self.constant(
                f"{name}.w_q", INT8, (out_features, in_features), ConstLayout.LINEAR_INT8
            ),
            self.constant(f"{name}.w_scale", FLOAT32, (out_features,)),
        )

    def linear(self, x_q: Ref, x_scale: Ref, weight: LinearWeight, out: Ref | None = None) -> Ref:
        """y[t, n] = float32(sum_k x_q[t, k] * w_q[n, k]) * x_scale[t] * w_scale[n].

        The sum is an exact int32; the multiplications go from left to right, in float32.

        Args:
            x_q: [T, in] int8.
            x_scale: [T] float32.
            weight: of [out, in].
            out: [T, out] float32, written; None: a new temporary.

        Returns:
            [T, out] float32.
        """
        if out is None:
            out = self._linear_out("linear", x_q, x_scale, weight)
        else:
            self._expect("linear", x_q, INT8, (out.shape[0], weight.w_q.shape[1]))
            self._expect("linear", out, FLOAT32, (x_q.shape[0], weight.w_q.shape[0]))
        return self._node("linear", (x_q, x_scale, weight.w_q, weight.w_scale), out)

    def linear_add(self, x_q: Ref, x_scale: Ref, weight: LinearWeight, residual: Ref) -> Ref:
        """residual + `linear`, added in float32.

        Args:
            x_q: [T, in] int8.
            x_scale: [T] float32.
            weight: of [out, in].
            residual: [T, out] float32; its memory may be reused for the result.

        Returns:
            [T, out] float32.
        """
        out = self._linear_out("linear_add", x_q, x_scale, weight)
        self._expect("linear_add", residual, FLOAT32, out.shape)
        return self._node("linear_add", (x_q, x_scale, weight.w_q, weight.w_scale, residual), out)

    def bf16_weight(self, name: str, out_features: int, in_features: int) -> Ref:
        """Constant `name.weight` [out, in] bfloat16 of a linear that isn't quantised."""
        shape = (out_features, in_features)
        return self.constant(f"{name}.weight", BFLOAT16, shape, ConstLayout.LINEAR_BF16)

    def linear_bf16(self, x: Ref, weight: Ref) -> Ref:
        """y[t, n] = sum_k bf16(x[t, k]) * weight[n, k], summed in float32.

        Args:
            x: [T, in] float32; rounded to bfloat16, half to even.
            weight: [out, in] bfloat16.

        Returns:
            [T, out] float32.
        """
        out = self._linear_bf16_out("linear_bf16", x, weight)
        return self._node("linear_bf16", (x, weight), out)

    def linear_bf16_add(self, x: Ref, weight: Ref, residual: Ref) -> Ref:
        """residual + `linear_bf16`, added in float32.

        Args:
            x: [T, in] float32.
            weight: [out, in] bfloat16.
            residual: [T, out] float32.

        Returns:
            [T, out] float32.
        """
        out = self._linear_bf16_out("linear_bf16_add", x, weight)
        self._expect("linear_bf16_add", residual, FLOAT32, out.shape)
        return self._node("linear_bf16_add", (x, weight, residual), out)

    def lm_head(self, x: Ref, weight: Ref, out: Ref) -> Ref:
        """logits[t, v] = sum_h bf16(x[t, h]) * weight[v, h], summed in float32.

        Args:
            x: [T, H] float32; rounded to bfloat16, half to even.
            weight: [vocab, H] bfloat16.
            out: [T, vocab] float32, written.

        Returns:
            `out`.
        """
        self._expect("lm_head", x, FLOAT32, (None, None))
        self._expect("lm_head", weight, BFLOAT16, (None, x.shape[1]))
        self._expect("lm_head", out, FLOAT32, (x.shape[0], weight.shape[0]))
        return self._node("lm_head", (x, weight), out)

    def _linear_out(self, op: str, x_q: Ref, x_scale: Ref, weight: LinearWeight) -> Ref:
        self._expect(op, x_q, INT8, (None, weight.w_q.shape[1]))
        self._expect(op, x_scale, FLOAT32, x_q.shape[:1])
        return self._temp(op, FLOAT32, (x_q.shape[0], weight.w_q.shape[0]))

    def _linear_bf16_out(self, op: str, x: Ref, weight: Ref) -> Ref:
        self._expect(op, x, FLOAT32, (None, None))
        self._expect(op, weight, BFLOAT16, (None, x.shape[1]))
        return self._temp(op, FLOAT32, (x.shape[0], weight.shape[0]))
