"""Checkpoints: readers, one file per format, and the writer of the format we produce.

Gives tensors in the shapes that Qwen3 has and nothing else: how a kernel packs
them is the kernel's business. Start at `checkpoint.py`; a new format is a new
`CheckpointReader` (`reader.py`) in a file of its own.
"""

from qwen3_a8w8.checkpoint.checkpoint import Checkpoint, open_checkpoint
from qwen3_a8w8.checkpoint.quantize import QuantizeSummary, quantize_checkpoint
from qwen3_a8w8.checkpoint.reader import CheckpointReader, QuantizedLinear
from qwen3_a8w8.checkpoint.resolve import resolve_model
from qwen3_a8w8.checkpoint.synth import SynthSummary, synth_checkpoint

__all__ = [
    "Checkpoint",
    "CheckpointReader",
    "QuantizeSummary",
    "QuantizedLinear",
    "SynthSummary",
    "open_checkpoint",
    "quantize_checkpoint",
    "resolve_model",
    "synth_checkpoint",
]
