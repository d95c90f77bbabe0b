"""Int8 quantisation: the schemes and the exact arithmetic behind them.

Works on tensors; doesn't know about files or models. Start at `int8.py`.
"""

from qwen3_a8w8.quantization.int8 import (
    dequantize,
    fold_zero_point,
    quantize_activation,
    quantize_weight,
)

__all__ = [
    "dequantize",
    "fold_zero_point",
    "quantize_activation",
    "quantize_weight",
]
