"""Load on an OpenAI-compatible server, measured by its client, as `vllm bench serve` does.

Flags, JSON keys and the meaning of each figure are vLLM's. A run goes from `settings.py` over
`dataset.py` (what is sent) and `arrivals.py` (when) to `client.py`, which only records the bytes of
each response with their times; `stream.py` and `metrics.py` make figures of them when the load
is over. `server.py` reads what a server says about itself, `engine_replay.py` runs the same
requests on the engine alone, and `run.py` puts it together. No module imports ray: the server is
any process.
"""
