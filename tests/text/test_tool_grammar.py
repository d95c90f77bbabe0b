"""Grammars of tool calls: what they allow is what the parser of tool calls reads."""

import json

import pytest

from qwen3_a8w8.errors import InvalidRequestError
from qwen3_a8w8.text.structured import StructuredOutput
from qwen3_a8w8.text.tool_calls import ToolCallParser
from qwen3_a8w8.text.tool_grammar import CallableTool, call_grammar
from tests.support.grammars import EOS, follow, ids_of, random_answer
from tests.support.tool_calls import calls_of

POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}},
    "required": ["x"],
    "additionalProperties": False,
}
WORD = {"properties": {"é": {"enum": ["a\n", "b"]}}, "additionalProperties": False}
TOOLS = [
    CallableTool("look", POINT, True),
    CallableTool('sa"y', WORD, False),
    CallableTool("wait", None, False),
]


def parsed(text):
    parser = ToolCallParser()
    parts = [*parser.feed(text), *parser.finish(is_cut=False)]
    assert not any(isinstance(part, str) for part in parts)
    return [(call.name, json.loads(call.arguments)) for call in calls_of(parts)]


@pytest.mark.parametrize("seed", range(20))
def test_random_walks_through_tool_calls_are_read_by_the_parser(
    grammar_compiler, demo_tokenizer, seed
):
    structured = StructuredOutput(grammar=call_grammar(TOOLS, max_calls=4))
    calls = parsed(random_answer(grammar_compiler, demo_tokenizer, structured, seed, most=3000))
    assert 1 <= len(calls) <= 4
    for name, arguments in calls:
        if name == "look":
            assert type(arguments.pop("x")) is int
        elif name == 'sa"y':
            assert arguments.pop("é", "b") in ("a\n", "b")
        else:
            assert name == "wait"
        assert arguments == {}


def test_calls_or_an_answer_where_both_may_come(grammar_compiler, demo_tokenizer):
    grammar = call_grammar(TOOLS[:1], answer=(POINT, False))
    structured = StructuredOutput(grammar=grammar)
    call = '<tool_call>\n{"name": "look", "arguments": {"x": 5}}\n</tool_call>'
    for text in ('{"x": 5}', call, f"{call}\n{call}"):
        state = grammar_compiler.start(structured)
        follow(state, demo_tokenizer.encode(text))
        assert set(EOS) <= set(ids_of(state.allowed()))


def test_tool_schema_keyword_that_can_not_be_enforced_is_refused_where_strict(grammar_compiler):
    schema = {"properties": {"a": {"type": "array", "uniqueItems": True}}}
    grammar_compiler.prepare(
        StructuredOutput(grammar=call_grammar([CallableTool("f", schema, False)]))
    )
    strict = StructuredOutput(grammar=call_grammar([CallableTool("f", schema, True)]))
    with pytest.raises(InvalidRequestError, match="uniqueItems"):
        grammar_compiler.prepare(strict)
