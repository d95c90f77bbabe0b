"""The OpenAI wire format, without a server: requests in, chunks and responses out.

A request body becomes a `ChatRequest` or `CompletionRequest` (`request.py` parses,
each model converts itself to `SamplingParams`). On the way out `ChatStream` and
`CompletionStream` turn output deltas into chunks, `ChatCollector` and
`CompletionCollector` into one response; `sse.py` frames them, `errors.py` writes
error bodies. Knows neither Ray nor FastAPI.
"""
