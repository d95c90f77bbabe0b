"""Validation of structured output in requests, before anything is compiled."""

import json
import pickle

import pytest

from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.errors import InvalidRequestError
from qwen3_a8w8.openai.chat.request import ChatRequest
from qwen3_a8w8.openai.completions.request import CompletionRequest
from qwen3_a8w8.openai.request import validate_request
from qwen3_a8w8.text.generation_defaults import GenerationDefaults
from qwen3_a8w8.text.reasoning import ReasoningState, thinking_after
from qwen3_a8w8.text.structured import StructuredOutput, Thinking

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOLS = [
    {"type": "function", "function": {"name": "look", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "wait"}},
]


def nested(depth):
    schema = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "sets nothing, expected exactly one of json, json_object, regex, choice, grammar"),
        ({"json": SCHEMA, "regex": "a"}, "sets json and regex"),
        ({"json": 5}, "has json 5, expected a non-empty string"),
        ({"json": "{"}, "isn't valid JSON: Expecting property name"),
        ({"json": "[1]"}, r"schema that is \[1\], expected an object"),
        ({"json": {"a": {1, 2}}}, "schema that isn't a JSON value"),
        ({"json": {"a": float("nan")}}, "schema that isn't a JSON value"),
        ({"json": nested(101)}, "is nested 102 brackets deep, the limit is 100"),
        ({"json": nested(10_000)}, "isn't a JSON value|brackets deep"),
        ({"json": "[" * 100_000 + "]" * 100_000}, "nested more than 100 brackets deep"),
        ({"json": False}, "has the json schema false, which matches no output"),
        ({"grammar": "start: " + "(" * 101 + '"a"' + ")" * 101}, "is nested 101 brackets deep"),
        ({"grammar": f"start: /{'(' * 101}a{')' * 101}/"}, "is nested 101 brackets deep"),
        ({"grammar": f"root ::= {'(' * 101}[a]{')' * 101}"}, "is nested 101 brackets deep"),
        ({"json_object": 1}, "has json_object 1, expected true"),
        ({"regex": ""}, "has regex '', expected a non-empty string"),
        ({"regex": "(" * 200}, "is nested 200 brackets deep"),
        ({"regex": "a" * 300_000}, "has 300000 characters, the limit is 262144"),
        ({"grammar": ["start: /a/"]}, "expected a non-empty string"),
        ({"choice": "yes"}, "has choice 'yes', expected a list of 1 to 1024 strings"),
        ({"choice": []}, "expected a list of 1 to 1024 strings"),
        ({"choice": ["a"] * 1025}, "expected a list of 1 to 1024 strings"),
        ({"choice": ["a", 5]}, "has 5 as choice 1"),
        ({"choice": ["a" * 200_000] * 2}, "has 400000 characters"),
        ({"regex": "a", "thinking": "often"}, "often"),
        ({"regexp": "a"}, "unknown key 'regexp'"),
    ],
)
def test_malformed_structured_is_refused_with_its_field(fields, message):
    with pytest.raises(InvalidRequestError, match=message) as caught:
        SamplingParams(structured=fields)
    assert caught.value.param == "structured"


@pytest.mark.parametrize(
    "fields",
    [
        {"json": {"type": "string", "description": "(" * 101}},
        {"json": {"enum": ["[" * 101, '"{' * 101]}},
        {"json": nested(99)},
        {"regex": r"\(a" * 101},
        {"regex": "[(]" * 101 + r"[\](]" * 101 + "[](]" * 101},
        {"grammar": 'start: "\\"' + "(" * 101 + '" /' + r"[(]\/\(" * 101 + "/ // " + "(" * 101},
        {"grammar": f'root ::= "{"(" * 101}" [({"(" * 101}] # {"(" * 101}'},
    ],
)
def test_brackets_that_nest_nothing_do_not_count(fields):
    SamplingParams(structured=fields)


def test_hundreds_of_tools_may_be_required():
    tools = [{"type": "function", "function": {"name": f"f{i}"}} for i in range(300)]
    assert "f299" in form_of(tools=tools, tool_choice="required").grammar


def test_schema_true_is_any_value():
    assert StructuredOutput(json=True) == StructuredOutput(json={})
    assert form_of(guided_json=True) == StructuredOutput(json="{}", param="guided_json")


@pytest.mark.parametrize("structured", [5, "a+", [SCHEMA]])
def test_structured_of_another_type_is_refused(structured):
    with pytest.raises(InvalidRequestError, match="expected a StructuredOutput or a mapping"):
        SamplingParams(structured=structured)


def test_structured_with_ignore_eos_is_refused():
    with pytest.raises(InvalidRequestError, match="ends where its grammar does") as caught:
        SamplingParams(structured={"regex": "a"}, ignore_eos=True)
    assert caught.value.param == "ignore_eos"


def test_equal_grammars_are_equal_and_survive_pickling():
    structured = StructuredOutput(json=SCHEMA)
    assert structured == StructuredOutput(json=json.dumps(SCHEMA))
    assert hash(structured) == hash(StructuredOutput(json=SCHEMA))
    assert pickle.loads(pickle.dumps(structured)) == structured
    assert StructuredOutput(choice=["a", "b"]).choice == ("a", "b")
    assert structured.key != StructuredOutput(json=SCHEMA, is_lenient=True).key


@pytest.mark.parametrize(
    ("state", "thinking"),
    [
        (ReasoningState.UNDECIDED, Thinking.OPTIONAL),
        (ReasoningState.REASONING, Thinking.OPEN),
        (ReasoningState.CONTENT, Thinking.NONE),
    ],
)
def test_grammar_of_a_chat_applies_after_the_think_block(state, thinking):
    sampling = SamplingParams(structured={"json_object": True})
    assert sampling.with_thinking(thinking_after(state)).structured.thinking is thinking
    assert SamplingParams().with_thinking(thinking) == SamplingParams()


def form_of(**fields):
    request = validate_request(
        ChatRequest, {"messages": [{"role": "user", "content": "hi"}], **fields}
    )
    return request.sampling_params(GenerationDefaults()).structured


def refusal_of(**fields):
    with pytest.raises(InvalidRequestError) as caught:
        form_of(**fields)
    return caught.value


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"response_format": {"type": "text"}}, None),
        (
            {"response_format": {"type": "json_object"}},
            StructuredOutput(json_object=True, param="response_format"),
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "strict": True, "schema": SCHEMA},
                }
            },
            StructuredOutput(json=SCHEMA, param="response_format"),
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "strict": False, "schema": SCHEMA},
                }
            },
            StructuredOutput(json=SCHEMA, is_lenient=True, param="response_format"),
        ),
        (
            {"structured_outputs": {"json": SCHEMA}},
            StructuredOutput(json=SCHEMA, param="structured_outputs"),
        ),
        (
            {"structured_outputs": {"regex": "a+"}, "response_format": {"type": "text"}},
            StructuredOutput(regex="a+", param="structured_outputs"),
        ),
        (
            {"structured_outputs": {"choice": ["a", "b"]}},
            StructuredOutput(choice=("a", "b"), param="structured_outputs"),
        ),
        (
            {"structured_outputs": {"grammar": "start: /a/"}},
            StructuredOutput(grammar="start: /a/", param="structured_outputs"),
        ),
        (
            {"structured_outputs": {"json_object": True}},
            StructuredOutput(json_object=True, param="structured_outputs"),
        ),
        ({"guided_json": SCHEMA}, StructuredOutput(json=SCHEMA, param="guided_json")),
        ({"guided_regex": "a+"}, StructuredOutput(regex="a+", param="guided_regex")),
        ({"guided_choice": ["a"]}, StructuredOutput(choice=("a",), param="guided_choice")),
        (
            {"guided_grammar": "start: /a/"},
            StructuredOutput(grammar="start: /a/", param="guided_grammar"),
        ),
    ],
)
def test_request_fields_become_structured_output(fields, expected):
    assert form_of(**fields) == expected
    completion = validate_request(CompletionRequest, {"prompt": "hi", **fields})
    assert completion.sampling_params(GenerationDefaults()).structured == expected


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": "json"}, "response_format"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex"),
        (
            {"structured_outputs": {"structural_tag": "{}"}},
            "structured_outputs.structural_tag",
        ),
        ({"guided_choice": []}, "guided_choice"),
        ({"structured_outputs": {"json": False}}, "structured_outputs"),
        ({"guided_regex": "a", "guided_json": SCHEMA}, "guided_regex"),
        (
            {"response_format": {"type": "json_object"}, "guided_regex": "a"},
            "guided_regex",
        ),
    ],
)
def test_bad_request_fields_are_refused_by_name(fields, param):
    assert refusal_of(**fields).param == param


def test_tool_choice_auto_leaves_the_answer_free_unless_it_has_to_be_json():
    assert form_of(tools=TOOLS) is None
    assert form_of(tools=TOOLS, tool_choice="auto") is None
    assert form_of(tools=TOOLS, guided_regex="a+") == StructuredOutput(
        regex="a+", param="guided_regex"
    )
    grammar = form_of(tools=TOOLS, response_format={"type": "json_object"}).grammar
    assert grammar.startswith("start: answer | calls\n")
    only_answer = form_of(tools=TOOLS, tool_choice="none", response_format={"type": "json_object"})
    assert only_answer.json_object


def test_tool_choice_required_allows_all_tools_and_named_only_one():
    required = form_of(tools=TOOLS, tool_choice="required").grammar
    assert "look" in required
    assert "wait" in required
    assert "{0,31}" in required
    single = form_of(tools=TOOLS, tool_choice="required", parallel_tool_calls=False).grammar
    assert "calls: call\n" in single
    choice = {"type": "function", "function": {"name": "wait"}}
    named = form_of(tools=TOOLS, tool_choice=choice).grammar
    assert "look" not in named
    assert "calls: call\n" in named


def test_tool_choice_without_its_tool_is_refused():
    choice = {"type": "function", "function": {"name": "run"}}
    error = refusal_of(tools=TOOLS, tool_choice=choice)
    assert error.param == "tool_choice"
    assert "'run', the tools are look, wait" in str(error)
    assert refusal_of(tools=[], tool_choice="required").param == "tool_choice"


def test_two_tools_of_one_name_are_refused_with_the_place_of_the_second():
    error = refusal_of(tools=[*TOOLS, TOOLS[0]])
    assert error.param == "tools[2].function.name"
    assert str(error) == (
        'tools[2].function.name is "look", which is the name of tools[0] too; use a different '
        "name for each function"
    )


def test_tool_whose_arguments_are_no_object_is_refused():
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}
    assert form_of(tools=[tool]) is None
    assert refusal_of(tools=[tool], tool_choice="required").param == "tools"
