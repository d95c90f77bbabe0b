"""Routes, and what stands before and after them; knows no Ray. Start at `api.py`."""
