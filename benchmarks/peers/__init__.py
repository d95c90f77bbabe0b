"""One adapter per engine that `compare_peers.py` measures, and what they have in common.

An adapter runs in the virtual environment of its engine, as `python -m benchmarks.peers.NAME`
from the root of the repository, and prints one line of JSON. `workload.py` is all that it
shares with the others: prompts, what is timed, and how. Nothing here imports more than one
engine, and only `ours.py` and `float_checkpoint.py` import this project.
"""
