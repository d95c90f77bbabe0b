"""Checkpoints: readers, one file per format, and the writer of the format we produce.

Returns tensors in Qwen3's shapes; kernels decide how to pack them. Start at
`checkpoint.py`; a new format is a new `CheckpointReader` (`reader.py`) in its own
file. Nothing is imported here: processes without torch need `resolve.py`.
"""
