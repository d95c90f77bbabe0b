import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen3_a8w8.text.reasoning import ReasoningParser, ReasoningState, initial_state


def split(parts, state=ReasoningState.UNDECIDED):
    parser = ReasoningParser(state)
    deltas = [*(parser.feed(part) for part in parts), parser.finish()]
    return "".join(d.reasoning for d in deltas), "".join(d.content for d in deltas)


CASES = [
    ("<think>\nfirst 2\n\nthen 4\n</think>\n\nThe answer.\n", "first 2\n\nthen 4", "The answer.\n"),
    ("\n<think>a</think>b", "a", "b"),
    ("<think>\n\n</think>\n\nb", "", "b"),
    ("no block", "", "no block"),
    ("  <thin ice", "", "  <thin ice"),
    ("answer <think>late</think>", "", "answer <think>late</think>"),
    ("<think>\nunfinished </thi", "unfinished </thi", ""),
    ("<think>\na\n</think>", "a", ""),
    ("<thi", "", "<thi"),
    ("", "", ""),
]


@pytest.mark.parametrize(("text", "reasoning", "content"), CASES)
def test_whole_text_is_split_at_the_tags(text, reasoning, content):
    assert split([text]) == (reasoning, content)


@pytest.mark.parametrize(("text", "reasoning", "content"), CASES)
def test_single_characters_are_split_as_the_whole_text(text, reasoning, content):
    assert split(list(text)) == (reasoning, content)


@given(st.lists(st.sampled_from(["<think>", "</think>", "\n", "a", " b", "<", "</thi"])))
def test_any_cut_gives_the_same_split(parts):
    assert split(parts) == split(["".join(parts)]) == split(list("".join(parts)))


def test_block_opened_by_the_prompt_is_reasoning_from_the_start():
    state = initial_state("<|im_start|>assistant\n<think>\n")
    assert split(["so", " x\n</think>\n\ny"], state) == ("so x", "y")


def test_block_closed_by_the_prompt_makes_everything_content():
    state = initial_state("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert split(["The ", "<think> tag"], state) == ("", "The <think> tag")


def test_prompt_without_a_block_leaves_it_to_the_answer():
    prompt = "<|im_start|>user\nwhat is <think>?<|im_end|>\n<|im_start|>assistant\n"
    assert initial_state(prompt) is ReasoningState.UNDECIDED


def test_reasoning_is_shown_as_it_arrives():
    parser = ReasoningParser()
    assert [parser.feed(p).reasoning for p in ["<think>", "\n", "one", " two", "\n", "three"]] == [
        "",
        "",
        "one",
        " two",
        "",
        "\nthree",
    ]
