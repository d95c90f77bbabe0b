"""The Ray Serve application: the only package that imports ray.

Start at `app.py` (what is deployed), then `ingress/deployment.py` (HTTP and Python
handle), `engine/replica.py` (one per device) and `engine/npu_actor.py` (the device's
process). Logic that doesn't need Ray is in `engine/batch_router.py`,
`replicas/failover.py`, `ingress/service.py` and `http/api.py`.
"""
