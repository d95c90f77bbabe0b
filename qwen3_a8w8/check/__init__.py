"""The quality gate: is what a model answers still what it should answer?

`run.py` holds the checks together; `prompts.py` is the fixed material, `repetition.py`
finds loops, `reference.py` is the float model, `report.py` the result and its limits,
`startup.py` the small self-check of experimental flags. Knows no terminal.
"""
