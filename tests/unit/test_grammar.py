"""Forms compiled for the demo model's vocabulary, and what they allow token by token."""

import json
import random
import re
import threading
from pathlib import Path

import numpy as np
import pytest

import qwen3_a8w8
from qwen3_a8w8.errors import InvalidRequestError
from qwen3_a8w8.text.grammar_compiler import GrammarCompiler
from qwen3_a8w8.text.structured import StructuredOutput
from qwen3_a8w8.text.tokenizer import Tokenizer
from qwen3_a8w8.text.tool_calls import ToolCallParser, collect_calls
from qwen3_a8w8.text.tool_grammar import CallableTool, call_grammar

DEMO = Path(qwen3_a8w8.__file__).parent / "demo"
EOS = (2553, 2551)
PADDED_VOCAB = 2600
"""Like the published models', the vocabulary is larger than the tokenizer's 2560."""


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_directory(DEMO)


@pytest.fixture(scope="module")
def compiler():
    compiler = GrammarCompiler(DEMO, vocab_size=PADDED_VOCAB, eos_token_ids=EOS)
    yield compiler
    compiler.close()


@pytest.fixture(scope="module")
def hasty_compiler():
    compiler = GrammarCompiler(DEMO, vocab_size=PADDED_VOCAB, eos_token_ids=EOS, timeout_s=0.5)
    yield compiler
    compiler.close()


def chain(length):
    return "\n".join(f"r{i}: r{i + 1}" for i in range(length))


def ids_of(mask):
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


def follow(state, token_ids):
    """Takes tokens, each of which has to be allowed."""
    for token_id in token_ids:
        assert token_id in ids_of(state.allowed()), token_id
        state.advance(token_id)
    assert state.error is None


def random_answer(compiler, tokenizer, structured, seed, most=400):
    """Follows a form at random; the text, or None if it didn't end."""
    state, rng, token_ids = compiler.start(structured), random.Random(seed), []
    while len(token_ids) < most:
        allowed = ids_of(state.allowed())
        token_id = rng.choice(allowed)
        state.advance(token_id)
        if token_id in EOS:
            return tokenizer.decode(token_ids)
        token_ids.append(token_id)
    return None


@pytest.mark.parametrize(
    ("fields", "texts"),
    [
        ({"json": {"type": "integer"}}, ["0", "-12", "365"]),
        ({"json_object": True}, ["{}", '{"a": [1, {"b": null}]}', '{\n  "a": "é\\n🙂"\n}']),
        ({"regex": "[a-c]+(x|yz)?"}, ["a", "abcx", "ccyz"]),
        ({"choice": ["yes", "no", "yes please", '"\n\\']}, ["yes", "yes please", '"\n\\']),
        ({"choice": ["x\x7fy", "z"]}, ["x\x7fy"]),
        ({"json": True}, ["5", "null", '{"a": [true]}']),
        ({"json": {"description": "no <|im_end|>", "type": "null"}}, ["null"]),
        (
            {"grammar": call_grammar([CallableTool("\x7f", None, False)], max_calls=1)},
            ['<tool_call>\n{"name": "\x7f", "arguments": {}}\n</tool_call>'],
        ),
        ({"grammar": 'start: "a" b\nb: /[0-9]/+'}, ["a1", "a123"]),
        ({"grammar": 'root ::= "a" b\nb ::= [0-9]+'}, ["a1", "a123"]),
    ],
)
def test_form_allows_its_texts_then_only_the_end(compiler, tokenizer, fields, texts):
    for text in texts:
        state = compiler.start(StructuredOutput(**fields))
        follow(state, tokenizer.encode(text))
        assert set(EOS) <= set(ids_of(state.allowed()))
        for eos in EOS:
            other = state.copy()
            other.advance(eos)
            # A step that is under way samples once more; nothing is left but the end.
            for _ in range(2):
                assert ids_of(other.allowed()) == sorted(EOS)
                other.advance(eos)
            assert other.error is None


@pytest.mark.parametrize("seed", range(20))
def test_random_walks_through_a_form_give_valid_answers(compiler, tokenizer, seed):
    pattern = "(a|bc|[0-9]{2,4}){1,6}"
    text = random_answer(compiler, tokenizer, StructuredOutput(regex=pattern), seed)
    assert re.fullmatch(pattern, text)
    schema = {"type": "array", "items": {"enum": [1, "two", None]}, "maxItems": 4}
    text = random_answer(compiler, tokenizer, StructuredOutput(json=schema), seed)
    assert all(item in (1, "two", None) for item in json.loads(text))


def test_special_and_unknown_ids_are_never_allowed_in_an_answer(compiler, tokenizer):
    state = compiler.start(StructuredOutput(regex=r"(.|\n)*"))
    allowed = ids_of(state.allowed())
    assert max(allowed) < tokenizer.vocab_size
    assert set(allowed) & tokenizer.special_ids == set(EOS)
    assert len(allowed) > 2000


def test_white_space_in_json_ends(compiler, tokenizer):
    state = compiler.start(StructuredOutput(json_object=True))
    follow(state, tokenizer.encode("{"))
    (space,) = tokenizer.encode(" ")
    follow(state, [space] * 64)
    assert space not in ids_of(state.allowed())


@pytest.mark.parametrize(
    "parameters",
    [
        None,
        {},
        {"type": "object", "properties": {}},
        {"properties": {}, "required": [], "additionalProperties": False, "title": "nothing"},
        {"type": "object", "additionalProperties": False},
    ],
)
def test_call_without_arguments_has_no_room_for_white_space(compiler, tokenizer, parameters):
    grammar = call_grammar([CallableTool("wait", parameters, False)], max_calls=1)
    state = compiler.start(StructuredOutput(grammar=grammar))
    follow(state, tokenizer.encode('<tool_call>\n{"name": "wait", "arguments": {'))
    assert {tokenizer.decode([i])[0] for i in ids_of(state.allowed())} == {"}"}
    follow(state, tokenizer.encode("}}\n</tool_call>"))
    assert set(EOS) <= set(ids_of(state.allowed()))


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object"},
        {"type": "object", "properties": {}, "additionalProperties": True},
        {"type": "object", "properties": {}, "minProperties": 1},
    ],
)
def test_call_whose_schema_names_no_arguments_but_allows_some_may_have_them(
    compiler, tokenizer, parameters
):
    grammar = call_grammar([CallableTool("wait", parameters, False)], max_calls=1)
    state = compiler.start(StructuredOutput(grammar=grammar))
    follow(state, tokenizer.encode('<tool_call>\n{"name": "wait", "arguments": {"a": 1}}'))


def test_form_holds_behind_a_think_block(compiler, tokenizer):
    form = StructuredOutput(regex="[0-9]{3}", thinking="optional")
    open_id, close_id = tokenizer.token_id("<think>"), tokenizer.token_id("</think>")
    straight = compiler.start(form)
    follow(straight, tokenizer.encode("123"))
    assert ids_of(straight.allowed()) == sorted(EOS)

    state = compiler.start(form)
    assert open_id in ids_of(state.allowed())
    follow(state, [open_id, *tokenizer.encode("\nthe quick fox, <b> 17\n")])
    inside = set(ids_of(state.allowed()))
    assert not inside & tokenizer.special_ids
    assert close_id in inside
    follow(state, [close_id])
    for newlines in ("", "\n", "\n\n"):
        behind = state.copy()
        follow(behind, tokenizer.encode(newlines))
        follow(behind, tokenizer.encode("123"))
        assert ids_of(behind.allowed()) == sorted(EOS)
    follow(state, tokenizer.encode("\n\n"))
    texts = {tokenizer.token_bytes(i).decode() for i in ids_of(state.allowed())}
    assert all(re.fullmatch("[0-9]+", text) for text in texts)


def test_think_block_that_the_prompt_has_opened_ends_before_the_form(compiler, tokenizer):
    state = compiler.start(StructuredOutput(regex="[0-9]", thinking="open"))
    follow(state, tokenizer.encode("so</think>\n\n7"))
    assert ids_of(state.allowed()) == sorted(EOS)


def test_closing_tag_can_not_be_spelled_by_other_tokens(compiler, tokenizer):
    """Text is split at the spelling, so that it would end the block without its token."""
    state = compiler.start(StructuredOutput(regex="[0-9]", thinking="open"))
    by_char = [tokenizer.token_id(char) for char in "</think>"]
    follow(state, by_char[:-1])
    completing = {
        i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i).startswith(b">")
    }
    assert by_char[-1] in completing
    assert not completing & set(ids_of(state.allowed()))
    follow(state, tokenizer.encode("ing"))
    assert by_char[-1] in ids_of(state.allowed())


def test_copy_goes_its_own_way(compiler, tokenizer):
    state = compiler.start(StructuredOutput(regex="[0-9]{2}", thinking="optional"))
    other = state.copy()
    follow(other, tokenizer.encode("<think>"))
    follow(state, tokenizer.encode("12"))
    follow(other, tokenizer.encode("a</think>34"))


def test_token_that_is_not_allowed_is_an_error_for_good(compiler, tokenizer):
    state = compiler.start(StructuredOutput(regex="[0-9]{2}"))
    state.advance(tokenizer.encode("x")[0])
    assert "doesn't satisfy the grammar" in state.error
    assert state.allowed() is None
    state.advance(tokenizer.encode("1")[0])
    assert state.error is not None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"json": {"type": "strin"}}, "Invalid type: strin"),
        ({"json": {"type": "array", "uniqueItems": True}}, 'Unimplemented keys: ."uniqueItems".'),
        ({"json": {"$ref": "#/nowhere"}}, "'/nowhere' does not exist"),
        ({"json": {"$ref": "http://example.com/schema"}}, "does not fetch resources"),
        ({"json": {"type": "string", "pattern": "(?=a)b"}}, "look-around"),
        ({"json": False}, "json schema false, which no answer fits"),
        ({"json": "false"}, "json schema false, which no answer fits"),
        ({"choice": ["fine", "x<|im_end|>y"]}, r"the text '<\|im_end\|>', which is a special"),
        ({"json": {"const": "</tool_call>"}}, "the text '</tool_call>', which is a special"),
        ({"json": {"properties": {"<think>": {"type": "null"}}}}, "the text '<think>', which"),
        ({"json": {"items": {"enum": [1, ["<think>"]]}}}, "the text '<think>', which"),
        ({"regex": r"<\|im_end\|>"}, r"the text '<\|im_end\|>', which is a special"),
        ({"grammar": 'start: "a" | b\nb: "<think>"'}, "the text '<think>', which"),
        (
            {"grammar": call_grammar([CallableTool("a</tool_call>b", None, False)])},
            "the text '</tool_call>', which is a special token of the model",
        ),
        (
            {"grammar": call_grammar([CallableTool("f", {"enum": ["<think>"]}, False)])},
            "the text '<think>', which",
        ),
        ({"regex": "("}, "unclosed group"),
        ({"grammar": "start: foo"}, "unknown name"),
        ({"grammar": "start: start"}, "no text fits it"),
        ({"grammar": "root ::= foo"}, "can't be used: "),
        ({"grammar": "nothing of the kind"}, "Failed to convert"),
        ({"grammar": "start: " + "(" * 99 + '"a"' + ")" * 99}, "nested"),
    ],
)
def test_form_that_can_not_be_compiled_is_refused_with_its_field(compiler, fields, message):
    with pytest.raises(InvalidRequestError, match=message) as caught:
        compiler.prepare(StructuredOutput(param="response_format", **fields))
    assert caught.value.param == "response_format"


def test_lenient_schema_ignores_what_can_not_be_enforced(compiler, tokenizer):
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    state = compiler.start(StructuredOutput(json=schema, is_lenient=True))
    follow(state, tokenizer.encode("[1, 1]"))


def test_form_that_gets_too_complex_on_the_way_is_an_error(compiler, tokenizer):
    state = compiler.start(StructuredOutput(regex="[bc]{200}(a?){400}a{400}"))
    follow(state, [tokenizer.token_id("b")] * 200)
    for _ in range(400):
        state.advance(tokenizer.token_id("a"))
        if state.allowed() is None:
            break
    assert "too many expressions" in state.error


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"regex": "(?:" + "a?" * 30_000 + ")"}, "takes more than"),
        ({"grammar": f'start: "{"ab" * 120_000}"'}, "takes more than"),
        ({"grammar": "start: r0\n" + chain(8000) + "\nr8000: /x/"}, "chained too deep"),
    ],
)
def test_hostile_form_is_refused_and_harms_only_its_own_process(hasty_compiler, fields, message):
    with pytest.raises(InvalidRequestError, match=message):
        hasty_compiler.prepare(StructuredOutput(**fields))
    hasty_compiler.prepare(StructuredOutput(regex="fine"))


def test_forms_are_kept_and_the_one_used_longest_ago_goes_first(compiler):
    compiler = GrammarCompiler(DEMO, vocab_size=PADDED_VOCAB, eos_token_ids=EOS, max_kept=2)
    forms = [StructuredOutput(regex=f"a{{{i}}}") for i in range(1, 4)]
    compiler.prepare(forms[0])
    first = compiler._matcher(forms[0])
    compiler.prepare(forms[1])
    assert compiler._matcher(forms[0]) is first
    compiler.prepare(forms[2])
    assert compiler._matcher(forms[0]) is first, "used last but one"
    assert len(compiler._kept) == 2
    compiler.close()


def test_process_that_tries_forms_is_started_again(compiler):
    compiler.prepare(StructuredOutput(regex="b1"))
    compiler._checker.close()
    compiler.prepare(StructuredOutput(regex="b2"))


def test_many_threads_may_prepare_the_same_form(compiler):
    form, errors = StructuredOutput(regex="zz[0-9]"), []

    def prepare():
        try:
            compiler.prepare(form)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=prepare) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_checkpoint_without_tokenizer_is_refused(tmp_path):
    compiler = GrammarCompiler(tmp_path, vocab_size=10, eos_token_ids=(1,))
    with pytest.raises(InvalidRequestError, match="has no tokenizer"):
        compiler.prepare(StructuredOutput(regex="a"))
    compiler.close()


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
    return [(call.name, json.loads(call.arguments)) for call in collect_calls(parts)]


@pytest.mark.parametrize("seed", range(20))
def test_random_walks_through_tool_calls_are_read_by_the_parser(compiler, tokenizer, seed):
    form = StructuredOutput(grammar=call_grammar(TOOLS, max_calls=4))
    calls = parsed(random_answer(compiler, tokenizer, form, seed, most=3000))
    assert 1 <= len(calls) <= 4
    for name, arguments in calls:
        if name == "look":
            assert type(arguments.pop("x")) is int
        elif name == 'sa"y':
            assert arguments.pop("é", "b") in ("a\n", "b")
        else:
            assert name == "wait"
        assert arguments == {}


def test_calls_or_an_answer_where_both_may_come(compiler, tokenizer):
    grammar = call_grammar(TOOLS[:1], answer=(POINT, False))
    form = StructuredOutput(grammar=grammar)
    call = '<tool_call>\n{"name": "look", "arguments": {"x": 5}}\n</tool_call>'
    for text in ('{"x": 5}', call, f"{call}\n{call}"):
        state = compiler.start(form)
        follow(state, tokenizer.encode(text))
        assert set(EOS) <= set(ids_of(state.allowed()))


def test_tool_schema_keyword_that_can_not_be_enforced_is_refused_where_strict(compiler):
    schema = {"properties": {"a": {"type": "array", "uniqueItems": True}}}
    compiler.prepare(StructuredOutput(grammar=call_grammar([CallableTool("f", schema, False)])))
    strict = StructuredOutput(grammar=call_grammar([CallableTool("f", schema, True)]))
    with pytest.raises(InvalidRequestError, match="uniqueItems"):
        compiler.prepare(strict)
