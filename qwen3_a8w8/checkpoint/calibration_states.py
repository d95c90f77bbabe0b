"""Hidden states of the calibration data, layer by layer.

They pass through each layer twice: before it is quantised, to observe the inputs of
its linears, and after that, so that the next layer gets the same input as in the
quantised model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from qwen3_a8w8.checkpoint.quantize_layer import LayerStatistics, QuantizedLayer
from qwen3_a8w8.checkpoint.quantize_progress import Progress
from qwen3_a8w8.checkpoint.reader import FloatLinear
from qwen3_a8w8.config import ModelConfig
from qwen3_a8w8.quantization.int8 import dequantize
from qwen3_a8w8.quantization.qwen3_layer import layer_forward, rotary_tables


class CalibrationStates:
    """The inputs of the current layer, in files of the running quantisation.

    Args:
        config: of the model.
        calibration: sequences of token ids; may be empty.
        progress: owns the files of the states.
    """

    def __init__(
        self, config: ModelConfig, calibration: Sequence[Sequence[int]], progress: Progress
    ) -> None:
        self._config = config
        self._calibration = calibration
        self._progress = progress
        self._lengths = [len(ids) for ids in calibration]
        self._rope = rotary_tables(config, max(self._lengths, default=0))

    @property
    def num_bytes(self) -> int:
        """Their size on disk: float32, the inputs of two layers."""
        return 2 * 4 * sum(self._lengths) * self._config.hidden_size

    def embed(self, table: Tensor) -> None:
        """Computes the input of layer 0 from the embedding `[vocab, hidden]`."""
        for ids, hidden in zip(self._calibration, self._sequences(0), strict=True):
            hidden.copy_(table[torch.tensor(ids)].float())

    def observe(
        self, layer: int, tensors: Mapping[str, Tensor], *, has_hessians: bool
    ) -> LayerStatistics:
        """Observes the inputs of a layer's linears.

        Args:
            layer: its index.
            tensors: its weights and norms in floating point, by their names inside it.
            has_hessians: see `LayerStatistics`.
        """
        statistics = LayerStatistics(has_hessians=has_hessians)
        floats = {name: tensor.float() for name, tensor in tensors.items()}
        for hidden in self._sequences(layer):
            layer_forward(self._config, floats, hidden, self._rope, statistics.observe)
        return statistics

    def advance(self, layer: int, result: QuantizedLayer) -> None:
        """Computes the input of the layer after `layer`, with its quantised weights."""
        dense = {name: tensor.float() for name, tensor in result.norms.items()}
        for name, linear in result.linears.items():
            dense[name] = (
                linear.weight.float()
                if isinstance(linear, FloatLinear)
                else dequantize(linear.w_q, linear.w_scale)
            )
        pairs = zip(self._sequences(layer), self._sequences(layer + 1), strict=True)
        for hidden, following in pairs:
            following.copy_(layer_forward(self._config, dense, hidden, self._rope))

    def _sequences(self, layer: int) -> tuple[Tensor, ...]:
        states = self._progress.hidden_states(layer, sum(self._lengths), self._config.hidden_size)
        return torch.split(states, self._lengths)
