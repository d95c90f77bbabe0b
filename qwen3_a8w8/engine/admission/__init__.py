"""Who may enter: requests become sequences (`sequence_factory.py`), as many as may wait."""
