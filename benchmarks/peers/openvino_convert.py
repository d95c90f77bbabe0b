"""Converts the bf16 checkpoint for OpenVINO: int8 weights per channel, in OpenVINO's venv.

python -m benchmarks.peers.openvino_convert BF16_DIR DST
"""

from __future__ import annotations

import sys
from pathlib import Path


def convert(src: Path, dst: Path) -> None:
    """Exports through optimum and compresses the weights through NNCF.

    Args:
        src: bf16 checkpoint in Hugging Face's layout.
        dst: directory to create; it appears under its name when it is complete.
    """
    from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig

    model = OVModelForCausalLM.from_pretrained(
        src,
        export=True,
        compile=False,
        quantization_config=OVWeightQuantizationConfig(bits=8, sym=True),
    )
    partial = dst.with_name(f"{dst.name}.partial")
    model.save_pretrained(partial)
    partial.rename(dst)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
