"""The tokens that a compiled grammar allows, one by one, over the demo model's vocabulary."""

import json
import re

import pytest

from qwen3_a8w8.text.structured import StructuredOutput
from qwen3_a8w8.text.tool_grammar import CallableTool, call_grammar
from tests.support.grammars import EOS, follow, ids_of, random_answer


@pytest.mark.parametrize(
    ("fields", "texts"),
    [
        ({"json": {"type": "integer"}}, ["0", "-12", "365"]),
        ({"json_object": True}, ["{}", '{"a": [1, {"b": null}]}', '{ "a" : "é\\n🙂" }']),
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
def test_form_allows_its_texts_then_only_the_end(grammar_compiler, demo_tokenizer, fields, texts):
    for text in texts:
        state = grammar_compiler.start(StructuredOutput(**fields))
        follow(state, demo_tokenizer.encode(text))
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
def test_random_walks_through_a_grammar_give_valid_outputs(grammar_compiler, demo_tokenizer, seed):
    pattern = "(a|bc|[0-9]{2,4}){1,6}"
    text = random_answer(grammar_compiler, demo_tokenizer, StructuredOutput(regex=pattern), seed)
    assert re.fullmatch(pattern, text)
    schema = {"type": "array", "items": {"enum": [1, "two", None]}, "maxItems": 4}
    text = random_answer(grammar_compiler, demo_tokenizer, StructuredOutput(json=schema), seed)
    assert all(item in (1, "two", None) for item in json.loads(text))


def test_special_and_unknown_ids_are_never_allowed_in_an_answer(grammar_compiler, demo_tokenizer):
    state = grammar_compiler.start(StructuredOutput(regex=r"(.|\n)*"))
    allowed = ids_of(state.allowed())
    assert max(allowed) < demo_tokenizer.vocab_size
    assert set(allowed) & demo_tokenizer.special_ids == set(EOS)
    assert len(allowed) > 2000


def test_json_has_at_most_one_space_between_tokens(grammar_compiler, demo_tokenizer):
    state = grammar_compiler.start(StructuredOutput(json_object=True))
    follow(state, demo_tokenizer.encode("{"))
    (space,) = demo_tokenizer.encode(" ")
    follow(state, [space])
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
def test_call_without_arguments_has_no_room_for_white_space(
    grammar_compiler, demo_tokenizer, parameters
):
    grammar = call_grammar([CallableTool("wait", parameters, False)], max_calls=1)
    state = grammar_compiler.start(StructuredOutput(grammar=grammar))
    follow(state, demo_tokenizer.encode('<tool_call>\n{"name": "wait", "arguments": {'))
    assert {demo_tokenizer.decode([i])[0] for i in ids_of(state.allowed())} == {"}"}
    follow(state, demo_tokenizer.encode("}}\n</tool_call>"))
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
    grammar_compiler, demo_tokenizer, parameters
):
    grammar = call_grammar([CallableTool("wait", parameters, False)], max_calls=1)
    state = grammar_compiler.start(StructuredOutput(grammar=grammar))
    follow(state, demo_tokenizer.encode('<tool_call>\n{"name": "wait", "arguments": {"a": 1}}'))


def test_grammar_applies_after_a_think_block(grammar_compiler, demo_tokenizer):
    structured = StructuredOutput(regex="[0-9]{3}", thinking="optional")
    open_id, close_id = demo_tokenizer.token_id("<think>"), demo_tokenizer.token_id("</think>")
    straight = grammar_compiler.start(structured)
    follow(straight, demo_tokenizer.encode("123"))
    assert ids_of(straight.allowed()) == sorted(EOS)

    state = grammar_compiler.start(structured)
    assert open_id in ids_of(state.allowed())
    follow(state, [open_id, *demo_tokenizer.encode("\nthe quick fox, <b> 17\n")])
    inside = set(ids_of(state.allowed()))
    assert not inside & demo_tokenizer.special_ids
    assert close_id in inside
    follow(state, [close_id])
    for newlines in ("", "\n", "\n\n"):
        behind = state.copy()
        follow(behind, demo_tokenizer.encode(newlines))
        follow(behind, demo_tokenizer.encode("123"))
        assert ids_of(behind.allowed()) == sorted(EOS)
    follow(state, demo_tokenizer.encode("\n\n"))
    texts = {demo_tokenizer.token_bytes(i).decode() for i in ids_of(state.allowed())}
    assert all(re.fullmatch("[0-9]+", text) for text in texts)


def test_think_block_that_the_prompt_has_opened_ends_before_the_grammar(
    grammar_compiler, demo_tokenizer
):
    state = grammar_compiler.start(StructuredOutput(regex="[0-9]", thinking="open"))
    follow(state, demo_tokenizer.encode("so</think>\n\n7"))
    assert ids_of(state.allowed()) == sorted(EOS)


def test_closing_tag_can_not_be_spelled_by_other_tokens(grammar_compiler, demo_tokenizer):
    """Text is split at the spelling, so that it would end the block without its token."""
    state = grammar_compiler.start(StructuredOutput(regex="[0-9]", thinking="open"))
    by_char = [demo_tokenizer.token_id(char) for char in "</think>"]
    follow(state, by_char[:-1])
    completing = {
        i
        for i in range(demo_tokenizer.vocab_size)
        if demo_tokenizer.token_bytes(i).startswith(b">")
    }
    assert by_char[-1] in completing
    assert not completing & set(ids_of(state.allowed()))
    follow(state, demo_tokenizer.encode("ing"))
    assert by_char[-1] in ids_of(state.allowed())


def test_copy_goes_its_own_way(grammar_compiler, demo_tokenizer):
    state = grammar_compiler.start(StructuredOutput(regex="[0-9]{2}", thinking="optional"))
    other = state.copy()
    follow(other, demo_tokenizer.encode("<think>"))
    follow(state, demo_tokenizer.encode("12"))
    follow(other, demo_tokenizer.encode("a</think>34"))


def test_token_that_is_not_allowed_is_an_error_for_good(grammar_compiler, demo_tokenizer):
    state = grammar_compiler.start(StructuredOutput(regex="[0-9]{2}"))
    state.advance(demo_tokenizer.encode("x")[0])
    assert "doesn't satisfy the grammar" in state.error
    assert state.allowed() is None
    state.advance(demo_tokenizer.encode("1")[0])
    assert state.error is not None


def test_lenient_schema_ignores_what_can_not_be_enforced(grammar_compiler, demo_tokenizer):
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    state = grammar_compiler.start(StructuredOutput(json=schema, is_lenient=True))
    follow(state, demo_tokenizer.encode("[1, 1]"))


def test_form_that_gets_too_complex_on_the_way_is_an_error(grammar_compiler, demo_tokenizer):
    state = grammar_compiler.start(StructuredOutput(regex="[bc]{200}(a?){400}a{400}"))
    follow(state, [demo_tokenizer.token_id("b")] * 200)
    for _ in range(400):
        state.advance(demo_tokenizer.token_id("a"))
        if state.allowed() is None:
            break
    assert "too many expressions" in state.error
