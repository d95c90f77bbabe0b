"""Routes, middleware and error responses; doesn't know about Ray. Start at `api.py`."""
