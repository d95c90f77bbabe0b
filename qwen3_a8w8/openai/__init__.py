"""The OpenAI wire format, without a server: parses requests, writes chunks and responses.

A request body becomes a `ChatRequest`, `CompletionRequest` or `ResponsesRequest`
(`request.py` parses, each model converts itself to `SamplingParams`). The `writer.py`
of each package turns output deltas into chunks or one response; `errors.py` writes
error bodies. Doesn't know about Ray or FastAPI.
"""
