"""The quality gate: compares a model's outputs with references and limits.

`run.py` runs the checks; `prompts.py` is the fixed material, `material.py` encodes it,
`repetition.py` finds loops, `reference.py` is the float model, `report.py` the result and
its limits, `matrix.py` the comparison of experimental flags. Doesn't print.
"""
