"""Sequences, scheduling and batching over token ids; imports no tensor library.

`core.py` is the interface, `plan.py` the contract with a runner, `step_cycle.py` the way from plan
to result, `engine.py` the in-process driver. `admission/` decides who may enter, `scheduling/` who
runs.
"""
