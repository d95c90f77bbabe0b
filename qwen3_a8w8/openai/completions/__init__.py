"""Text completions: `request.py` parses requests, `writer.py` writes responses."""
