"""Kernels: the callables' contract, the op set, and one folder per device.

Start with `signature.py` (what a callable promises), `ops/` (the operations a
model is written in, with their exact arithmetic) and `reference_ops.py` (that
arithmetic in torch). `select.py` chooses a backend.
"""
