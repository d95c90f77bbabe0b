"""The Responses API, a chat completion in other words: `request.py` in, `writer.py` out."""
