"""Between text and token ids: tokenizer, chat template, and what turns output ids into text.

Knows neither HTTP nor the engine. Start at `tokenizer.py` on the way in and at
`output.py` (`OutputProcessor`) on the way out; `reasoning.py` and `tool_calls.py`
then split an answer into its parts.
"""
