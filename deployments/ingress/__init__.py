"""The ingress deployment: from request text to generations. Start at `service.py`."""
