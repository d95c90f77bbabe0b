"""Sequences, scheduling and batching over token ids; imports no tensor library.

`plan.py` is the contract with a runner, `core.py` the brain, `step_cycle.py` its way from plan
to result, `engine.py` its in-process driver.
"""
