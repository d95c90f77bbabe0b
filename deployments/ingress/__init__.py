"""The ingress deployment: text in, generations out. Start at `service.py`."""
