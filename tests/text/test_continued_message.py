"""Prompts that end within the last message, against those of transformers where it has one."""

import pytest
import transformers

from qwen3_a8w8.errors import InvalidRequestError
from qwen3_a8w8.text.chat_template import ChatTemplate
from qwen3_a8w8.text.continued_message import continued_prompt
from qwen3_a8w8.text.reasoning import ReasoningState

USER = {"role": "user", "content": "What is the capital of France?"}


@pytest.fixture(scope="module")
def reference(tokenizer_dir):
    return transformers.AutoTokenizer.from_pretrained(tokenizer_dir)


@pytest.fixture(scope="module")
def template(tokenizer_dir, tokenizer):
    return ChatTemplate.from_directory(tokenizer_dir, special_tokens=tokenizer.special_tokens)


def prompt_of(template, last):
    message = {"role": "assistant", **last}
    return continued_prompt(template, [USER, message], tools=None, template_kwargs=None)


@pytest.mark.parametrize(
    "content",
    [
        "The capital",
        "The capital ",
        "<think>\nEasy.\n</think>\n\nThe capital",
        "<think>\n\n</think>\n\n{",
        "Easy.</think>\n\nThe capital",
        " capital capital",
    ],
)
def test_prompt_equals_that_of_transformers(template, reference, content):
    text, state = prompt_of(template, {"content": content})
    messages = [USER, {"role": "assistant", "content": content}]
    # transformers looks for the last message's text as the template shows it.
    shown = content.rpartition("</think>")[2].lstrip("\n")
    whole = reference.apply_chat_template(messages, tokenize=False)
    assert text == whole[: whole.rindex(shown) + len(shown)]
    if shown.strip() == shown == content:
        theirs = reference.apply_chat_template(
            messages, tokenize=False, continue_final_message=True
        )
        assert text == theirs
    assert text.endswith(shown)
    assert state is ReasoningState.CONTENT


@pytest.mark.parametrize(
    "last",
    [
        {"content": "<think>\nLet me see"},
        {"content": "", "reasoning_content": "Let me see"},
    ],
)
def test_open_think_block_is_continued(template, last):
    text, state = prompt_of(template, last)
    assert text.endswith("<|im_start|>assistant\n<think>\nLet me see")
    assert state is ReasoningState.REASONING


@pytest.mark.parametrize("last", [{"content": ""}, {"content": None}])
def test_message_without_text_is_refused(template, last):
    with pytest.raises(InvalidRequestError, match="no text to continue"):
        prompt_of(template, last)


def test_template_that_hides_the_text_is_refused():
    template = ChatTemplate("{% for m in messages %}{{ m.role }}{% endfor %}")
    with pytest.raises(InvalidRequestError, match="doesn't show the content"):
        prompt_of(template, {"content": "x"})
