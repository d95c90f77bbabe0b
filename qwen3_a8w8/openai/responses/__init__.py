"""The Responses API on top of chat completions: `request.py` parses, `writer.py` writes."""
