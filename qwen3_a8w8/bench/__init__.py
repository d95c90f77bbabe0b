"""Benchmarks of this machine: every figure with the limit that it is compared with.

`machine.py` measures the limits, `kernels.py` and `engine.py` the figures, `report.py`
writes both. There are no thresholds.
"""
