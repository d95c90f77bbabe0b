"""Progress of a quantisation: a directory from which a later run can continue.

`.NAME.partial` next to the target has the files being written, the hidden states of
the calibration data and `progress.json`. It belongs to one source and one set of
options; a directory of another source or options is never changed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from qwen3_a8w8.checkpoint.model_files import read_json_object
from qwen3_a8w8.checkpoint.quantize_report import LinearReport
from qwen3_a8w8.errors import CheckpointError

_PROGRESS = "progress.json"


class Progress:
    """Progress of one quantisation.

    Args:
        target: the directory to be created.
        key: identifies source and options.

    Raises:
        CheckpointError: a directory for the same target belongs to another source or options.

    Attributes:
        directory: where the files are written until completion.
        layers_done: layers whose tensors are on disk.
        reports: of these layers.
    """

    def __init__(self, target: Path, key: str) -> None:
        self.directory = target.parent / f".{target.name}.partial"
        self._key = key
        self.layers_done = 0
        self.reports: list[LinearReport] = []
        path = self.directory / _PROGRESS
        if not path.is_file():
            return
        found = read_json_object(path)
        if found.get("key") != key:
            raise CheckpointError(
                f"{self.directory}: has an unfinished quantisation of another model, or with "
                "other options; remove it, or choose another target"
            )
        self.layers_done = int(found["layers_done"])
        self.reports = [LinearReport(**report) for report in found["reports"]]

    def start(self) -> None:
        """Creates the directory, empty unless there is progress to continue."""
        if self.layers_done == 0:
            self.remove()
            self.directory.mkdir(parents=True)

    def finish_layer(self, reports: Sequence[LinearReport]) -> None:
        """Records that one more layer is on disk."""
        self.layers_done += 1
        self.reports += reports
        content = {
            "key": self._key,
            "layers_done": self.layers_done,
            "reports": [asdict(report) for report in self.reports],
        }
        path = self.directory / _PROGRESS
        new = path.with_suffix(".new")
        new.write_text(json.dumps(content), encoding="utf-8")
        os.replace(new, path)

    def complete(self, target: Path) -> None:
        """Renames the directory to its final name, without the files for resuming."""
        (self.directory / _PROGRESS).unlink(missing_ok=True)
        for path in self.directory.glob("hidden-*.bin"):
            path.unlink()
        os.replace(self.directory, target)

    def remove(self) -> None:
        """Removes the directory."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def hidden_states(self, layer: int, num_tokens: int, width: int) -> torch.Tensor:
        """The input of a layer for all calibration tokens, `[num_tokens, width]` float32.

        Mapped from a file, so that it needs no memory and outlives the process; two files
        alternate, so that the input of the current layer stays intact.
        """
        path = self.directory / f"hidden-{layer % 2}.bin"
        size = num_tokens * width * 4
        exists = path.is_file() and path.stat().st_size == size
        mode: Literal["r+", "w+"] = "r+" if exists else "w+"
        shape = (num_tokens, width)
        return torch.from_numpy(np.memmap(path, dtype=np.float32, mode=mode, shape=shape))
