"""The muscle: executes step plans on one device.

`model_runner.py` is the face; `device_model.py` holds the model that it dispatches to,
`model_loader.py` compiles and loads that, `worker.py` owns device memory and callables,
`packing.py` turns plans into input tensors, `sequences.py` remembers what each
live sequence looks like, `validation.py` refuses plans that don't fit, and
`sizing.py` decides how large the KV cache may be.
"""
