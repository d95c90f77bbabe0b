"""Ascend NPUs by torch_npu; `device.py` is the only module that looks for it."""
