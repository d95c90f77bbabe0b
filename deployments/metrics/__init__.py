"""`/metrics`: what replicas and ingress processes report, in Prometheus text format.

`replica_metrics.py` has our names, `vllm_metrics.py` vLLM's for the same values, `http_metrics.py`
counts requests by route and status in each ingress process, and `exposition.py` writes the text.
Knows no ray.
"""
