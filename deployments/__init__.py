"""The Ray Serve application: the only package that imports ray.

Start at `app.py` (what is deployed), then `ingress.py` (HTTP and Python handle),
`engine_replica.py` (one per device) and `npu_actor.py` (the device's process).
Everything that has logic of its own and no need of Ray sits in `router.py`,
`resume.py`, `service.py` and `api.py`.
"""
