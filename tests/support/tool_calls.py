"""What a whole answer has of tool calls."""

from qwen3_a8w8.text.tool_calls import CallPart, WholeCalls


def calls_of(parts):
    """The calls among the parts of a whole answer, malformed ones left out."""
    return [part for part in WholeCalls().feed(parts) if isinstance(part, CallPart)]
