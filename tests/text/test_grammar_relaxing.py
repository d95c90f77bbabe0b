"""Schemas that the compiler can't compile: relaxed where lenient, refused by path where strict."""

import json

import pytest

from qwen3_a8w8.errors import InvalidRequestError
from qwen3_a8w8.text.json_grammar import relaxed_schema
from qwen3_a8w8.text.structured import StructuredOutput
from qwen3_a8w8.text.tool_grammar import CallableTool, call_grammar, strict_call_grammar
from tests.support.grammars import EOS, follow, ids_of, random_answer

BAD = {
    "look-around": {"type": "string", "pattern": r"^(?!a)\w+$"},
    "backreference": {"type": "string", "pattern": r"^(a)\1$"},
    "int64 bounds": {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
    "1e22": {"type": "number", "maximum": 1e22},
    "remote $ref": {"$ref": "https://example.com/schema.json"},
}
COUNT = {"type": "integer", "minimum": 1, "maximum": 3}


def schema_of(bad):
    return {
        "type": "object",
        "properties": {"bad": bad, "count": COUNT},
        "required": ["count", "bad"],
        "additionalProperties": False,
    }


def tool(bad, *, is_strict=False):
    return CallableTool("f", schema_of(bad), is_strict)


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_lenient_schema_is_relaxed_at_the_offending_keyword_only(
    grammar_compiler, demo_tokenizer, bad
):
    lenient = StructuredOutput(json=schema_of(bad), is_lenient=True)
    calls = StructuredOutput(grammar=call_grammar([tool(bad)]), tools=("f",))
    for structured, has_call in ((lenient, False), (calls, True)):
        for seed in range(4):
            text = random_answer(grammar_compiler, demo_tokenizer, structured, seed, most=2000)
            if text is None:
                continue
            if has_call:
                text = text.partition('"arguments": ')[2].partition("}\n</tool_call>")[0]
            value = json.loads(text)
            assert value["count"] in (1, 2, 3), "the other properties keep their constraints"
            assert value.keys() == {"bad", "count"}
            if "type" in bad:
                kinds = {"string": str, "integer": int, "number": (int, float)}
                assert isinstance(value["bad"], kinds[bad["type"]])


@pytest.mark.parametrize(
    ("bad", "path"),
    [
        (BAD["look-around"], "properties.bad.pattern"),
        (BAD["remote $ref"], r"properties.bad.\$ref"),
        ({"type": "array", "uniqueItems": True}, "properties.bad.uniqueItems"),
    ],
)
def test_strict_tool_is_refused_by_its_name_and_the_path(grammar_compiler, bad, path):
    for grammar in (
        call_grammar([tool(bad, is_strict=True)]),
        strict_call_grammar([tool(bad, is_strict=True)]),
    ):
        structured = StructuredOutput(grammar=grammar, tools=("f",), param="tools")
        with pytest.raises(InvalidRequestError, match=f"the tool 'f', {path}") as caught:
            grammar_compiler.prepare(structured)
        assert "function_0" not in str(caught.value)
        assert "arguments_0" not in str(caught.value)


def test_relaxed_schema_of_many_keywords_takes_few_trials():
    properties = {f"p{i}": {"type": "string", "maxLength": i} for i in range(200)}
    properties["p77"]["pattern"] = "bad"
    schema, trials = {"type": "object", "properties": properties}, []

    def does_compile(candidate):
        trials.append(candidate)
        return "bad" not in json.dumps(candidate)

    relaxed, removed = relaxed_schema(schema, does_compile)
    assert removed == ["properties.p77.pattern"]
    del properties["p77"]["pattern"]
    assert relaxed == schema
    assert len(trials) < 25


def test_relaxed_schema_that_never_compiles_is_none():
    assert relaxed_schema({"type": "object"}, lambda schema: False) is None


@pytest.mark.parametrize(
    "extra", [{"uniqueItems": False}, {"propertyNames": {}}, {"propertyNames": {"type": "string"}}]
)
def test_keyword_that_allows_everything_is_accepted_in_strict_schemas(grammar_compiler, extra):
    schema = schema_of({"type": "array", "items": {"type": "object", **extra}, **extra})
    grammar_compiler.prepare(StructuredOutput(json=schema))
    grammar = call_grammar([CallableTool("f", schema, True)])
    grammar_compiler.prepare(StructuredOutput(grammar=grammar, tools=("f",)))


def test_property_named_like_a_keyword_is_kept(grammar_compiler, demo_tokenizer):
    schema = {
        "type": "object",
        "properties": {"uniqueItems": {"const": 5}},
        "required": ["uniqueItems"],
        "additionalProperties": False,
    }
    structured = StructuredOutput(json=schema)
    text = random_answer(grammar_compiler, demo_tokenizer, structured, 0)
    assert json.loads(text) == {"uniqueItems": 5}


def test_json_has_one_space_between_tokens_unless_a_pattern_allows_other(
    grammar_compiler, demo_tokenizer
):
    schema = schema_of({"const": 1})
    for pattern, allowed, refused in (
        (None, '{"bad": 1, "count":2}', '{"bad":  1'),
        ("", '{"bad":1,"count":2}', '{"bad": 1'),
        (r"[\n ]{1,8}", '{\n  "bad": 1,\n  "count": 2\n}', '{\t"bad"'),
    ):
        structured = StructuredOutput(json=schema, whitespace_pattern=pattern)
        state = grammar_compiler.start(structured)
        follow(state, demo_tokenizer.encode(allowed))
        assert set(EOS) <= set(ids_of(state.allowed()))
        state = grammar_compiler.start(structured)
        with pytest.raises(AssertionError):
            follow(state, demo_tokenizer.encode(refused))


def test_whitespace_pattern_without_json_is_refused():
    with pytest.raises(InvalidRequestError, match="whitespace_pattern"):
        StructuredOutput(regex="a", whitespace_pattern="")


def test_text_is_free_and_calls_of_strict_tools_match_their_schema(
    grammar_compiler, demo_tokenizer
):
    free = CallableTool("any", {"type": "object", "properties": {"n": COUNT}}, False)
    grammar = strict_call_grammar([tool({"const": 1}, is_strict=True), free], max_calls=2)
    structured = StructuredOutput(grammar=grammar, tools=("f", "any"))

    def after(text):
        state = grammar_compiler.start(structured)
        follow(state, demo_tokenizer.encode(text))
        return set(ids_of(state.allowed()))

    assert set(EOS) <= after("")
    assert set(EOS) <= after('Well, {"name": 5\n')
    call = '<tool_call>\n{"name": "f", "arguments": {"bad": 1, "count": 2}}\n</tool_call>'
    loose = '<tool_call>\n{"name": "any", "arguments": {"n": 9}}\n</tool_call>'
    assert set(EOS) <= after(call)
    assert set(EOS) <= after(f"First.\n{call}\n{loose}")
    call_open = demo_tokenizer.encode("<tool_call>")
    assert set(call_open) <= after(call)
    assert not set(call_open) & after(f"{call}\n{loose}\n")
    for broken in (
        '<tool_call>\n{"name": "f", "arguments": {"bad": 2',
        '<tool_call>\n{"name": "g"',
        "<tool_call>\nNo",
    ):
        with pytest.raises(AssertionError):
            after(broken)
