"""One adapter per engine that `compare_peers.py` measures, and their shared code.

An adapter runs in the virtual environment of its engine, as `python -m benchmarks.peers.NAME`
from the root of the repository, and prints one line of JSON. Adapters share only `workload.py`:
prompts and timing. No module imports more than one engine, and only `ours.py` and
`float_checkpoint.py` import this project.
"""
