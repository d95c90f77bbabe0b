"""Qwen3's forward pass, written once over the op set, and its weights.

`qwen3.py` holds the three callables, `weights.py` builds their constants from a
checkpoint, `rope.py` the rotary table.
"""
