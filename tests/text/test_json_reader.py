import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen3_a8w8.text.json_reader import MAX_DEPTH, JsonReadError, object_text
from tests.support.json_values import JSON_OBJECTS


def refuse(name):
    raise ValueError(name)


def pythons_own(text):
    """The object that Python's parser reads, or None."""
    try:
        value = json.loads(text, strict=False, parse_constant=refuse)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def ours(text):
    try:
        return json.loads(object_text(text))
    except JsonReadError:
        return None


@given(JSON_OBJECTS, st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_object_text_of_an_object_is_the_text(value, is_ascii, indent):
    text = json.dumps(value, ensure_ascii=is_ascii, indent=indent)
    assert object_text(f" \n{text}\t") == text


@given(JSON_OBJECTS, st.data())
def test_object_text_with_a_character_changed_is_read_as_python_reads_it(value, data):
    text = json.dumps(value, ensure_ascii=False)
    at = data.draw(st.integers(0, len(text) - 1))
    put = data.draw(st.sampled_from(["", *'{}[]",:\\u0123456789eE+-.tfn\n ']))
    num_cut = data.draw(st.integers(0, 2))
    changed = text[:at] + put + text[at + num_cut :]
    assert ours(changed) == pythons_own(changed)


@pytest.mark.parametrize(
    "number",
    [
        "0",
        "-0",
        "10",
        "-1.50",
        "1e5",
        "1E+05",
        "2.5e-3",
        "01",
        "-",
        "1.",
        ".5",
        "1e",
        "+1",
        "--1",
        "1.2.3",
        "1e5.0",
        "0x1",
        "NaN",
        "-Infinity",
        "1_0",
        "١",
    ],
)
def test_object_text_takes_the_numbers_that_python_takes(number):
    text = f'{{"a": {number}, "b": [{number}]}}'
    assert ours(text) == pythons_own(text)


def test_object_text_escapes_raw_control_characters_in_strings_only():
    assert object_text('{\n"a\tb": "c\nd\x00\x7f"}') == '{\n"a\\tb": "c\\nd\\u0000\x7f"}'


@pytest.mark.parametrize("text", ["", "{", "[]", "1", '{"a": 1}}', '{"a": 1} x', "{a: 1}", '{"a"}'])
def test_object_text_of_something_else_is_refused(text):
    with pytest.raises(JsonReadError):
        object_text(text)


def test_object_text_is_read_to_the_depth_that_requests_may_have():
    def nested(depth):
        return '{"a": ' + "[" * (depth - 1) + "]" * (depth - 1) + "}"

    assert object_text(nested(MAX_DEPTH)) == nested(MAX_DEPTH)
    with pytest.raises(JsonReadError):
        object_text(nested(MAX_DEPTH + 1))
