"""Conversion between text and token ids: tokenizer, chat template, and output processing.

Doesn't know about HTTP or the engine. Start at `tokenizer.py` for the input and at
`output_processor.py` for the output; `reasoning.py` and `tool_calls.py` then split
the output text into reasoning, content and tool calls.
"""
