"""Who runs in a step: start at `scheduler.py`."""
