"""Executes step plans on one device.

Start at `model_runner.py`; `device_model.py` has the model that it dispatches to,
`model_loader.py` compiles and loads that model, `worker.py` owns device memory and
callables, `packing.py` converts plans to input tensors, `sequences.py` keeps the state
of each live sequence, `validation.py` rejects invalid plans, and `sizing.py` computes
the size of the KV cache.
"""
