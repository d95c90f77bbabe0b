import json

import pytest
import transformers

from qwen3_a8w8.errors import CheckpointError, InvalidRequestError
from qwen3_a8w8.text.chat_template import ChatTemplate

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Wetter in Köln & <b>anderswo</b> 'heute' 你好",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": {"city": "Köln", "days": [1, 2.5, None]}},
}
CONVERSATIONS = {
    "user": [{"role": "user", "content": "hi"}],
    "system": [{"role": "system", "content": "be <brief>"}, {"role": "user", "content": "你好 🙂"}],
    "turns": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b\n", "reasoning_content": "thought"},
        {"role": "user", "content": "  c"},
    ],
    "reasoned": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "\nthought\n"},
    ],
    "tools": [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]},
        {"role": "tool", "content": "12 °C", "tool_call_id": "call_1"},
        {"role": "tool", "content": "13 °C", "tool_call_id": "call_1"},
    ],
}


@pytest.fixture(scope="module")
def reference(tokenizer_dir):
    return transformers.AutoTokenizer.from_pretrained(tokenizer_dir)


@pytest.fixture(scope="module")
def template(tokenizer_dir, tokenizer):
    return ChatTemplate.from_directory(tokenizer_dir, special_tokens=tokenizer.special_tokens)


@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize("tools", [None, [TOOL, TOOL]])
@pytest.mark.parametrize("kwargs", [{}, {"enable_thinking": True}, {"enable_thinking": False}])
@pytest.mark.parametrize("prompt", [True, False])
def test_prompt_and_ids_equal_those_of_transformers(
    reference, template, tokenizer, name, tools, kwargs, prompt
):
    messages = CONVERSATIONS[name]
    ours = template.render(
        messages, tools=tools, add_generation_prompt=prompt, template_kwargs=kwargs
    )
    common = {"tools": tools, "add_generation_prompt": prompt, **kwargs}
    assert ours == reference.apply_chat_template(messages, tokenize=False, **common)
    ids = reference.apply_chat_template(messages, tokenize=True, return_dict=False, **common)
    assert tokenizer.encode(ours) == ids


@pytest.mark.parametrize("role", ["robot", "developer", None, 5])
def test_role_that_templates_leave_out_is_refused(template, role):
    messages = [{"role": "user", "content": "a"}, {"role": role, "content": "b"}]
    with pytest.raises(InvalidRequestError, match=r"messages\[1\]\.role is") as caught:
        template.render(messages)
    assert caught.value.param == "messages[1].role"


SNIPPETS = [
    "{{ messages | tojson(indent=2) }}|{{ [1, 'é<'] | tojson(separators=(',', ':')) }}",
    "{% for m in messages %}\n    {% if loop.first %}{% continue %}{% endif %}\n  x\n{% endfor %}",
    "{% generation %}{{ messages[0].content }}{% endgeneration %}!",
    "{{ eos_token }}{{ bos_token is defined }}{{ custom | default('none') }}{{ tools is none }}",
    "{% set ns = namespace(a=1) %}{% set ns.a = 2 %}{{ ns.a }}\n",
]


@pytest.mark.parametrize("source", SNIPPETS)
def test_features_of_templates_render_as_in_transformers(reference, tokenizer, source):
    messages = CONVERSATIONS["system"]
    ours = ChatTemplate(source, special_tokens=tokenizer.special_tokens).render(messages)
    theirs = reference.apply_chat_template(
        messages, chat_template=source, tokenize=False, add_generation_prompt=True
    )
    assert ours == theirs


def test_strftime_now_gives_the_year():
    assert len(ChatTemplate("{{ strftime_now('%Y') }}").render([])) == 4


def test_refusal_by_the_template_is_an_invalid_request():
    template = ChatTemplate("{{ raise_exception('no ' ~ messages[0].role) }}")
    with pytest.raises(InvalidRequestError, match="no user") as caught:
        template.render([{"role": "user", "content": "x"}])
    assert caught.value.param == "messages"


@pytest.mark.parametrize("message", [{"role": "user"}, {"role": "user", "content": None}])
def test_message_without_what_the_template_needs_is_an_invalid_request(template, message):
    with pytest.raises(InvalidRequestError, match="can't render"):
        template.render([message])


def test_reserved_kwarg_is_an_invalid_request(template):
    with pytest.raises(InvalidRequestError, match="'messages'") as caught:
        template.render(CONVERSATIONS["user"], template_kwargs={"messages": []})
    assert caught.value.param == "chat_template_kwargs"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(a=1) }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
    ],
)
def test_template_that_leaves_the_sandbox_is_refused(source):
    with pytest.raises(InvalidRequestError):
        ChatTemplate(source).render(CONVERSATIONS["user"])


def test_prompt_above_the_size_limit_is_refused():
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", max_chars=10)
    assert template.render([{"role": "user", "content": "x" * 10}]) == "x" * 10
    with pytest.raises(InvalidRequestError, match="more than 10 characters"):
        template.render([{"role": "user", "content": "x" * 6}] * 2)


def test_syntax_error_is_a_checkpoint_error_with_the_line():
    with pytest.raises(CheckpointError, match="line 2"):
        ChatTemplate("ok\n{% if %}")


def _config(directory, **fields):
    (directory / "tokenizer_config.json").write_text(json.dumps(fields), encoding="utf-8")
    return directory


def test_template_file_goes_before_the_config(tmp_path):
    _config(tmp_path, chat_template="config")
    assert ChatTemplate.from_directory(tmp_path).render([]) == "config"
    (tmp_path / "chat_template.jinja").write_text("file", encoding="utf-8")
    assert ChatTemplate.from_directory(tmp_path).render([]) == "file"


def test_default_of_named_templates_is_taken(tmp_path):
    named = [{"name": "rag", "template": "no"}, {"name": "default", "template": "yes"}]
    assert ChatTemplate.from_directory(_config(tmp_path, chat_template=named)).render([]) == "yes"


def test_checkpoint_without_template_gives_none(tmp_path):
    assert ChatTemplate.from_directory(_config(tmp_path)) is None


@pytest.mark.parametrize("value", [7, [{"name": "rag", "template": "x"}]])
def test_template_of_a_wrong_kind_is_a_checkpoint_error(tmp_path, value):
    with pytest.raises(CheckpointError, match="chat_template: expected a string"):
        ChatTemplate.from_directory(_config(tmp_path, chat_template=value))


SLOW = {
    "nested loops": "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
    "without output": "{% for i in range(99999) %}{% for m in messages %}{{- m.x }}{% endfor %}"
    "{% endfor %}",
    "recursive macro": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}"
    "{% endmacro %}{{ f(60) }}",
    "set block": "{% set x %}{% for i in range(9999) %}{% for j in messages %}{{ j.x }}"
    "{% for k in range(9999) %}{% endfor %}{% endfor %}{% endfor %}{% endset %}",
}


@pytest.mark.parametrize("source", SLOW.values(), ids=SLOW)
def test_rendering_that_takes_too_long_is_refused(source):
    template = ChatTemplate(source, max_render_s=0.02)
    with pytest.raises(InvalidRequestError, match=r"more than 0\.02 s"):
        template.render([{"role": "user", "content": "x"}] * 100)


@pytest.mark.parametrize(
    "source", ["{{ 'x' * n }}", "{{ n * 'x' }}", "{{ n ** n }}", "{{ [1] * n }}"]
)
def test_value_of_a_request_cannot_be_made_large(source):
    template = ChatTemplate(source)
    with pytest.raises(InvalidRequestError, match="too large"):
        template.render([], template_kwargs={"n": 10**9})
    assert template.render([], template_kwargs={"n": 2})


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "chat_template"])
def test_kwarg_cannot_replace_what_the_server_decides(name):
    with pytest.raises(InvalidRequestError, match=name) as caught:
        ChatTemplate("{{ messages }}").render([], template_kwargs={name: "x"})
    assert caught.value.param == "chat_template_kwargs"


def test_kwargs_above_the_size_limit_are_refused():
    template = ChatTemplate("x")
    assert template.render([], template_kwargs={"note": "x" * 16_000}) == "x"
    with pytest.raises(InvalidRequestError, match="limit is 16384"):
        template.render([], template_kwargs={"note": "x" * 17_000})


@pytest.mark.parametrize(
    "source", ["{% include '/etc/hostname' %}", "{% import '/etc/hostname' as x %}"]
)
def test_template_opens_no_file(source):
    with pytest.raises(InvalidRequestError, match="no loader"):
        ChatTemplate(source).render([])
