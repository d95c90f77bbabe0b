"""Invalid grammars, hostile grammars, and the cache of compiled ones."""

import threading

import pytest

from qwen3_a8w8.errors import InvalidRequestError
from qwen3_a8w8.text.grammar_compiler import GrammarCompiler
from qwen3_a8w8.text.structured import StructuredOutput
from qwen3_a8w8.text.tool_grammar import CallableTool, call_grammar
from tests.support.grammars import DEMO, EOS, PADDED_VOCAB


@pytest.fixture(scope="module")
def hasty_compiler():
    # A usual grammar takes a thirtieth of that, the hostile ones ten times as much or more.
    compiler = GrammarCompiler(DEMO, vocab_size=PADDED_VOCAB, eos_token_ids=EOS, timeout_s=0.1)
    yield compiler
    compiler.close()


def chain(length):
    return "\n".join(f"r{i}: r{i + 1}" for i in range(length))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"json": {"type": "strin"}}, "Invalid type: strin"),
        ({"json": {"type": "array", "uniqueItems": True}}, 'Unimplemented keys: ."uniqueItems".'),
        ({"json": {"$ref": "#/nowhere"}}, "'/nowhere' does not exist"),
        ({"json": {"$ref": "http://example.com/schema"}}, "does not fetch resources"),
        ({"json": {"type": "string", "pattern": "(?=a)b"}}, "look-around"),
        ({"json": False}, "json schema false, which matches no output"),
        ({"json": "false"}, "json schema false, which matches no output"),
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
        ({"grammar": "start: start"}, "no text matches it"),
        ({"grammar": "root ::= foo"}, "can't be used: "),
        ({"grammar": "nothing of the kind"}, "Failed to convert"),
        ({"grammar": "start: " + "(" * 99 + '"a"' + ")" * 99}, "nested"),
    ],
)
def test_form_that_can_not_be_compiled_is_refused_with_its_field(grammar_compiler, fields, message):
    with pytest.raises(InvalidRequestError, match=message) as caught:
        grammar_compiler.prepare(StructuredOutput(param="response_format", **fields))
    assert caught.value.param == "response_format"


@pytest.mark.parametrize(
    "fields",
    [
        {"regex": "(?:" + "a?" * 30_000 + ")"},
        {"grammar": f'start: "{"ab" * 120_000}"'},
    ],
)
def test_grammar_that_takes_long_is_refused_and_ends_only_the_child_process(hasty_compiler, fields):
    with pytest.raises(InvalidRequestError, match="takes more than"):
        hasty_compiler.prepare(StructuredOutput(**fields))
    hasty_compiler.prepare(StructuredOutput(regex="fine"))


def test_grammar_that_crashes_the_child_process_is_refused(grammar_compiler):
    # With the usual time limit, which a slow machine isn't to reach first.
    grammar = "start: r0\n" + chain(8000) + "\nr8000: /x/"
    with pytest.raises(InvalidRequestError, match="chained too deeply"):
        grammar_compiler.prepare(StructuredOutput(grammar=grammar))
    grammar_compiler.prepare(StructuredOutput(regex="fine"))


def test_grammars_are_cached_and_the_least_recently_used_is_evicted():
    compiler = GrammarCompiler(DEMO, vocab_size=PADDED_VOCAB, eos_token_ids=EOS, max_cached=2)
    grammars = [StructuredOutput(regex=f"a{{{i}}}") for i in range(1, 4)]
    compiler.prepare(grammars[0])
    first = compiler._matcher(grammars[0])
    compiler.prepare(grammars[1])
    assert compiler._matcher(grammars[0]) is first
    compiler.prepare(grammars[2])
    assert compiler._matcher(grammars[0]) is first, "used last but one"
    assert len(compiler._cache) == 2
    compiler.close()


def test_process_that_tests_grammars_is_started_again(grammar_compiler):
    grammar_compiler.prepare(StructuredOutput(regex="b1"))
    grammar_compiler._checker.close()
    grammar_compiler.prepare(StructuredOutput(regex="b2"))


def test_many_threads_may_prepare_the_same_grammar(grammar_compiler):
    structured, errors = StructuredOutput(regex="zz[0-9]"), []

    def prepare():
        try:
            grammar_compiler.prepare(structured)
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
