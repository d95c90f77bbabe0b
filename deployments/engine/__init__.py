"""One engine: `replica.py` with its `batch_router.py` in one process, `npu_actor.py` in another."""
