"""What the engine has done: `engine_stats.py` of steps, `request_stats.py` of requests."""
