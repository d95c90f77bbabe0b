"""Structured output of the demo model: valid, and the same in every schedule."""

import json
import re
from dataclasses import replace

import jsonschema
import pytest

from qwen3_a8w8 import LLM, SamplingParams
from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.engine.request import EngineRequest
from qwen3_a8w8.errors import InvalidRequestError
from tests.support.step_driver import StepDriver

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "ç"]}, "maxItems": 3},
        "home": {
            "anyOf": [
                {"type": "null"},
                {
                    "type": "object",
                    "properties": {"city": {"type": "string", "pattern": "^[A-Z][a-z]{1,8}$"}},
                    "required": ["city"],
                    "additionalProperties": False,
                },
            ]
        },
    },
    "required": ["name", "age", "tags", "home"],
    "additionalProperties": False,
}
GRAMMARS = {
    "json": {"json": PERSON},
    "regex": {"regex": "([A-F][0-9]{2}-){2,5}end"},
    "choice": {"choice": ["red", "green", "green and blue"]},
    "grammar": {"grammar": 'start: sum\nsum: N | sum "+" N\nN: /[0-9]{1,3}/'},
}
TOO_COMPLEX = {"regex": "[ab]{200}(a?){400}a{400}"}
"""Compiles, and breaks a limit once 200 characters are written."""


def is_valid(kind, text):
    if kind == "json":
        jsonschema.validate(json.loads(text), PERSON)
        return True
    if kind == "choice":
        return text in GRAMMARS["choice"]["choice"]
    pattern = GRAMMARS["regex"]["regex"] if kind == "regex" else r"[0-9]{1,3}(\+[0-9]{1,3})*"
    return re.fullmatch(pattern, text) is not None


@pytest.fixture(scope="module")
def llm():
    with LLM("demo", num_kv_blocks=513, max_model_len=1024) as llm:
        yield llm
        assert llm._runner._sequences == {}
        assert llm.stats().num_blocks_in_use == 0


@pytest.fixture(scope="module")
def prompts(llm):
    questions = ["Who are you?", "Tell me a story.", "What is 3 + 4?", "Describe a person."]
    return [
        llm.chat_prompt(
            [{"role": "user", "content": questions[i % 4] + " " * (i // 4)}], enable_thinking=False
        )
        for i in range(16)
    ]


def params(kind, seed, **settings):
    return SamplingParams(
        **{"structured": GRAMMARS[kind], "seed": seed, "max_tokens": 400, **settings}
    )


SETTINGS = [
    {"temperature": 0.0},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.8},
    {"temperature": 1.5},
    {"temperature": 1.0, "min_p": 0.05, "repetition_penalty": 1.2, "logit_bias": {11: 5.0}},
    {"temperature": 20.0},
]


@pytest.mark.parametrize("kind", GRAMMARS)
def test_sixteen_answers_at_once_are_valid_and_equal_to_those_alone(llm, prompts, kind):
    sampling = [params(kind, seed, max_tokens=250, **SETTINGS[seed % 5]) for seed in range(16)]
    together = llm.generate(prompts, sampling)
    # A sum may continue to the limit of tokens, and so may white space between tokens of JSON.
    ended = [output for output in together if output.finish_reason == "stop"]
    assert len(ended) >= 6
    assert all(is_valid(kind, output.text) for output in ended)
    batch = llm.generate_batch(prompts, sampling)
    alone = [llm.generate(p, s)[0] for p, s in zip(prompts, sampling, strict=True)]
    assert [o.token_ids for o in batch] == [o.token_ids for o in together]
    assert [o.token_ids for o in alone] == [o.token_ids for o in together]


def test_output_truncated_by_its_length_is_the_start_of_a_valid_one(llm, prompts):
    whole = llm.generate(prompts[3], params("json", 3, temperature=1.0))[0]
    assert whole.finish_reason == "stop"
    num_tokens = len(whole.token_ids) - 4
    cut = llm.generate(prompts[3], params("json", 3, temperature=1.0, max_tokens=num_tokens))[0]
    assert cut.finish_reason == "length"
    assert cut.token_ids == whole.token_ids[:num_tokens]


def test_form_ends_the_answer_before_min_tokens(llm, prompts):
    sampling = params("choice", 1, temperature=1.0, min_tokens=300)
    (output,) = llm.generate(prompts[0], sampling)
    assert output.finish_reason == "stop"
    assert is_valid("choice", output.text)
    longer = params("grammar", 1, temperature=1.0, min_tokens=30, max_tokens=40)
    (output,) = llm.generate(prompts[0], longer)
    assert len(output.token_ids) > 30, "the end is barred as long as more can come"


def test_several_choices_of_one_prompt_each_match_the_grammar(llm, prompts):
    (output,) = llm.generate(prompts[1], params("json", 5, temperature=1.2, n=4))
    assert len({c.text for c in output.completions}) > 1
    assert all(is_valid("json", c.text) for c in output.completions)


def test_rows_without_a_grammar_are_not_changed(llm, prompts):
    free = SamplingParams(temperature=1.0, seed=9, max_tokens=40, logprobs=2)
    expected = llm.generate(prompts[:8], free)
    mixed = llm.generate(prompts, [free] * 8 + [params("json", 2)] * 8)
    assert [o.completions for o in mixed[:8]] == [o.completions for o in expected]


def test_grammar_applies_after_the_think_block(llm):
    prompt = llm.chat_prompt([{"role": "user", "content": "What is 3 + 4?"}])
    for seed in range(6):
        structured = {"regex": "[0-9]{1,4}!", "thinking": "optional"}
        sampling = SamplingParams(structured=structured, seed=seed, max_tokens=400, temperature=0.6)
        (output,) = llm.generate(prompt, sampling)
        assert output.finish_reason == "stop"
        assert re.fullmatch(
            r"(<think>((?!</think>)(.|\n))*</think>\n{0,2})?[0-9]{1,4}!", output.text
        )
    forced = replace(sampling, structured={**structured, "thinking": "open"})
    (output,) = llm.generate(prompt + llm.tokenizer.encode("<think>\n"), forced)
    if output.finish_reason == "stop":
        assert re.search(r"</think>\n{0,2}[0-9]{1,4}!$", output.text)


@pytest.mark.parametrize("num_known", [1, 7, 20])
def test_resumed_output_continues_as_it_would_have(llm, prompts, num_known):
    sampling = replace(params("json", 4, temperature=1.0), seed=4)
    (whole,) = llm.generate(prompts[2], sampling)
    request = EngineRequest(
        tuple(prompts[2]), sampling, output_token_ids=whole.token_ids[:num_known]
    )
    (output,) = llm._engine.generate([request])
    assert output.token_ids == whole.token_ids


def test_stream_that_is_left_frees_its_grammar(llm, prompts):
    stream = llm.stream(prompts[0], params("json", 1, temperature=1.0))
    for _ in range(3):
        next(stream)
    assert len(llm._runner._sequences) == 1
    stream.close()
    assert llm._runner._sequences == {}


def test_form_that_can_not_be_used_is_refused_before_anything_runs(llm, prompts):
    num_steps = llm.stats().device_time_s
    for structured in ({"json": {"type": "strin"}}, {"regex": "("}, {"grammar": "start: x"}):
        with pytest.raises(InvalidRequestError) as caught:
            llm.generate(prompts[0], SamplingParams(structured=structured))
        assert caught.value.param == "structured"
    assert llm.stats().device_time_s == num_steps


def test_form_that_gets_too_complex_ends_its_own_answer_only(llm, prompts):
    with pytest.raises(InvalidRequestError, match=r"too many expressions.*make structured simpler"):
        llm.generate(prompts[0], SamplingParams(structured=TOO_COMPLEX, max_tokens=400))
    assert llm.stats().num_blocks_in_use == 0
    (output,) = llm.generate(prompts[0], params("json", 0))
    assert is_valid("json", output.text)


class FlakyRunner:
    """Carries steps out, and then fails some of them."""

    def __init__(self, runner, failing):
        self._runner = runner
        self._failing = failing

    def execute(self, plan):
        result = self._runner.execute(plan)
        if plan.step_id in self._failing:
            raise MemoryError("just now")
        return result


@pytest.mark.parametrize("lookahead", [0, 1])
def test_failed_steps_change_no_answer(llm, prompts, lookahead):
    sampling = [params(kind, seed, temperature=1.0) for seed, kind in enumerate(GRAMMARS)]
    expected = llm.generate(prompts[:4], sampling)
    driver = StepDriver(llm.capabilities, EngineConfig(lookahead=lookahead))
    driver.runner = FlakyRunner(llm._runner, {3, 45})  # between them the isolated retries end
    ids = [
        driver.add(EngineRequest(output.prompt_token_ids, settings))
        for output, settings in zip(expected, sampling, strict=True)
    ]
    driver.run()
    assert driver.core.stats().counters.num_failed_steps == 2
    assert [tuple(driver.tokens[i]) for i in ids] == [output.token_ids for output in expected]
    assert [driver.ends[i].finish_reason for i in ids] == [o.finish_reason for o in expected]
