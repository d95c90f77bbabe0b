"""Checkpoints: readers, one file per format, and the writer of the format we produce.

Gives tensors in the shapes that Qwen3 has and nothing else: how a kernel packs
them is the kernel's business. Start at `checkpoint.py`; a new format is a new
`CheckpointReader` (`reader.py`) in a file of its own. Nothing is imported here:
`resolve.py` is needed in processes that have no use for torch.
"""
