import json

import pytest

from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.errors import InvalidRequestError
from qwen3_a8w8.openai.chat.request import ChatRequest
from qwen3_a8w8.openai.completions.request import CompletionRequest
from qwen3_a8w8.openai.request import parse_request, validate_request
from qwen3_a8w8.text.generation_defaults import GenerationDefaults

USER = {"role": "user", "content": "hi"}
DEFAULTS = GenerationDefaults(temperature=0.6, top_p=0.95, top_k=20)


def chat(**fields):
    return validate_request(ChatRequest, {"messages": [USER], **fields})


def completion(**fields):
    return validate_request(CompletionRequest, {"prompt": "hi", **fields})


def test_sampling_params_without_fields_are_the_checkpoints_defaults():
    expected = SamplingParams(max_tokens=None, temperature=0.6, top_p=0.95, top_k=20)
    assert chat().sampling_params(DEFAULTS) == expected


def test_sampling_params_null_fields_are_the_checkpoints_defaults():
    request = chat(temperature=None, stop=None, n=None, logit_bias=None, tools=None, stream=None)
    assert request.sampling_params(DEFAULTS) == chat().sampling_params(DEFAULTS)
    assert not request.is_stream


def test_sampling_params_sent_fields_go_before_the_defaults():
    request = chat(
        temperature=0,
        top_p=1,
        top_k=-1,
        min_p=0.1,
        n=2,
        seed=7,
        stop="END",
        stop_token_ids=[5],
        presence_penalty=1,
        frequency_penalty=-1.5,
        repetition_penalty=1.1,
        logit_bias={"3": -100, "4": 1.5},
        max_tokens=9,
        min_tokens=2,
        ignore_eos=True,
        logprobs=True,
        top_logprobs=3,
        skip_special_tokens=False,
    )
    assert request.sampling_params(DEFAULTS) == SamplingParams(
        temperature=0,
        top_p=1,
        top_k=-1,
        min_p=0.1,
        n=2,
        seed=7,
        stop=("END",),
        stop_token_ids=(5,),
        presence_penalty=1,
        frequency_penalty=-1.5,
        repetition_penalty=1.1,
        logit_bias={3: -100, 4: 1.5},
        max_tokens=9,
        min_tokens=2,
        ignore_eos=True,
        logprobs=3,
        skip_special_tokens=False,
    )


def test_max_completion_tokens_goes_before_max_tokens():
    assert chat(max_tokens=5, max_completion_tokens=3).sampling_params(DEFAULTS).max_tokens == 3


def test_logprobs_without_alternatives_ask_for_zero():
    assert chat(logprobs=True).sampling_params(DEFAULTS).logprobs == 0
    assert chat(logprobs=False).sampling_params(DEFAULTS).logprobs is None
    assert completion(logprobs=0).sampling_params(DEFAULTS).logprobs == 0


def test_completion_max_tokens_defaults_to_sixteen():
    assert completion().sampling_params(DEFAULTS).max_tokens == 16


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "hot"),
        ("temperature", float("nan")),
        ("temperature", -1),
        ("temperature", True),
        ("top_p", -0.5),
        ("max_tokens", -1),
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("max_tokens", "5"),
        ("max_completion_tokens", 0),
        ("n", 0),
        ("n", 17),
        ("seed", -(2**63) - 1),
        ("stop", 5),
        ("stop", [""]),
        ("stop", ["x"] * 17),
        ("stop_token_ids", [-1]),
        ("logit_bias", [1]),
        ("logit_bias", {"a": 1}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"1": 200}),
        ("presence_penalty", 3),
        ("top_logprobs", 3),
        ("stream_options", {"include_usage": True}),
        ("response_format", {"type": "xml"}),
        ("tool_choice", "sometimes"),
        ("tool_choice", {"type": "function", "function": {}}),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "function": {"name": "f"}}),
        ("messages", []),
        ("messages", "hi"),
        ("messages", None),
        ("stream", "yes"),
        ("chat_template_kwargs", []),
    ],
)
def test_chat_bad_value_is_refused_with_its_field(field, value):
    with pytest.raises(InvalidRequestError) as caught:
        chat(**{field: value}).sampling_params(DEFAULTS)
    assert caught.value.param.split("[")[0].split(".")[0] == field
    assert field in str(caught.value)


@pytest.mark.parametrize("value", [-1, 21])
def test_chat_top_logprobs_outside_its_range_is_refused(value):
    with pytest.raises(InvalidRequestError) as caught:
        chat(logprobs=True, top_logprobs=value)
    assert caught.value.param == "top_logprobs"


@pytest.mark.parametrize(
    ("message", "param", "text"),
    [
        ({"content": "x"}, "messages[1].role", "missing"),
        ({"role": "robot", "content": "x"}, "messages[1].role", "robot"),
        ({"role": "user"}, "messages[1].content", "missing"),
        ({"role": "user", "content": None}, "messages[1].content", "string"),
        ({"role": "user", "content": 5}, "messages[1].content", "5"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
            "messages[1].content[0].type",
            "image_url",
        ),
        ({"role": "user", "content": ["x"]}, "messages[1].content[0]", "text"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]},
            "messages[1].tool_calls[0].function.name",
            "missing",
        ),
        ("x", "messages[1]", "x"),
    ],
)
def test_chat_bad_message_is_refused_with_its_place(message, param, text):
    with pytest.raises(InvalidRequestError, match=text) as caught:
        chat(messages=[USER, message])
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            {"role": "user", "content": [{"type": "text", "text": t} for t in "ab"]},
            {"role": "user", "content": "a\nb"},
        ),
        ({"role": "developer", "content": "x"}, {"role": "system", "content": "x"}),
        ({"role": "assistant", "content": None}, {"role": "assistant", "content": ""}),
        ({"role": "assistant"}, {"role": "assistant", "content": ""}),
        (
            {"role": "assistant", "content": "", "refusal": None, "audio": None, "tool_calls": []},
            {"role": "assistant", "content": ""},
        ),
        (
            {"role": "assistant", "content": "a", "reasoning": "r"},
            {"role": "assistant", "content": "a", "reasoning_content": "r"},
        ),
        (
            {"role": "tool", "content": "4", "tool_call_id": "c"},
            {"role": "tool", "content": "4", "tool_call_id": "c"},
        ),
    ],
)
def test_chat_message_is_given_to_the_template(message, expected):
    assert chat(messages=[message]).template_messages() == [expected]


@pytest.mark.parametrize(
    ("arguments", "expected"), [('{"a": 1}', {"a": 1}), ("{}", {}), ("", {}), ("a=1", "a=1")]
)
def test_chat_past_call_arguments_become_an_object_where_they_are_one(arguments, expected):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    (message,) = chat(
        messages=[{"role": "assistant", "content": None, "tool_calls": [call]}]
    ).template_messages()
    assert message["tool_calls"] == [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": expected}}
    ]


def test_chat_tools_reach_the_template_as_they_were_sent():
    tool = {
        "function": {"parameters": {"b": 1, "a": 2}, "x": None, "name": "f"},
        "strict": None,
        "type": "function",
    }
    request = chat(tools=[tool])
    assert json.dumps(request.template_tools()) == json.dumps([tool])
    assert request.has_tools


def test_chat_tool_choice_none_hides_the_tools():
    request = chat(tools=[{"type": "function", "function": {"name": "f"}}], tool_choice="none")
    assert request.template_tools() is None
    assert not request.has_tools


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"type": 5}, "tools[0].type"),
        ({"type": "function"}, "tools[0].function"),
        ({"type": "function", "function": {"name": ""}}, "tools[0].function.name"),
        (
            {"type": "function", "function": {"name": "f", "parameters": []}},
            "tools[0].function.parameters",
        ),
    ],
)
def test_chat_bad_tool_is_refused_with_its_place(tool, param):
    with pytest.raises(InvalidRequestError) as caught:
        chat(tools=[tool])
    assert caught.value.param == param


def test_unknown_fields_are_accepted_and_named():
    request = chat(store=True, best_color="red", user="u", metadata={"a": "b"})
    assert request.unknown_fields() == ("best_color", "store")
    assert completion(foo=1).unknown_fields() == ("foo",)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
def test_completion_prompt_of_any_shape_is_a_list_of_prompts(prompt, expected):
    assert completion(prompt=prompt).prompt == expected


@pytest.mark.parametrize(
    "prompt", ["", [], [""], ["a", ""], [[]], [1, "a"], ["a", [1]], [True], [[-1]], None, 5, {}]
)
def test_completion_bad_prompt_is_refused(prompt):
    with pytest.raises(InvalidRequestError) as caught:
        completion(prompt=prompt)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"echo": True, "logprobs": 1, "stream": True}, "echo"),
        ({"best_of": 2}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
    ],
)
def test_completion_unsupported_field_is_refused(fields, param):
    with pytest.raises(InvalidRequestError) as caught:
        completion(**fields)
    assert caught.value.param == param


def test_missing_field_is_named():
    with pytest.raises(InvalidRequestError, match="messages is missing") as caught:
        validate_request(ChatRequest, {})
    assert caught.value.param == "messages"


def test_parse_request_reads_a_body():
    body = json.dumps({"messages": [USER], "stream": True, "stream_options": {"include_usage": 1}})
    with pytest.raises(InvalidRequestError, match=r"stream_options\.include_usage"):
        parse_request(ChatRequest, body)
    request = parse_request(ChatRequest, body.replace(": 1}", ": true}").encode())
    assert request.is_stream
    assert request.context_options()["has_usage"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1]", b"null", b'"x"', b"\xff", b"[" * 100_000, b'{"n": ' + b"1" * 5000]
)
def test_parse_request_other_than_a_json_object_is_refused(body):
    with pytest.raises(InvalidRequestError, match="request body"):
        parse_request(ChatRequest, body)


@pytest.mark.parametrize(("num_prompts", "n"), [(257, 1), (100_000, 1), (17, 16)])
def test_completion_of_more_answers_than_a_request_may_have_is_refused(num_prompts, n):
    body = {"model": "m", "prompt": ["a"] * num_prompts, "n": n}
    with pytest.raises(InvalidRequestError, match="256") as caught:
        validate_request(CompletionRequest, body)
    assert caught.value.param == "prompt"
    validate_request(CompletionRequest, {"model": "m", "prompt": ["a"] * (256 // n), "n": n})
