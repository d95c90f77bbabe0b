"""Text completions: `request.py` in, `writer.py` out."""
