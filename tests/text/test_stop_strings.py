from hypothesis import given
from hypothesis import strategies as st

from qwen3_a8w8.text.stop_strings import StopStringMatcher


def cut(text, pieces):
    """Cuts text into pieces of the given sizes, the rest last."""
    parts = []
    for size in pieces:
        parts.append(text[:size])
        text = text[size:]
    return [*parts, text]


def run(stop, parts):
    matcher = StopStringMatcher(stop)
    shown = [matcher.feed(part) for part in parts]
    return [*shown, "" if matcher.matched else matcher.finish()], matcher.matched


def first_stop(text, stop):
    """By brute force: the shortest beginning of the text that ends with a stop string."""
    for end in range(1, len(text) + 1):
        ending = [s for s in stop if text[:end].endswith(s)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(
    text=st.text("ab", max_size=30),
    stop=st.lists(st.text("ab", min_size=1, max_size=6), max_size=4),
    sizes=st.lists(st.integers(0, 4), max_size=20),
)
def test_any_cut_of_any_text_gives_the_brute_force_result(text, stop, sizes):
    shown, matched = run(stop, cut(text, sizes))
    assert ("".join(shown), matched) == first_stop(text, stop)


@given(
    text=st.text("ab", max_size=20),
    stop=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3),
)
def test_text_shown_so_far_is_all_but_the_longest_possible_beginning(text, stop):
    matcher = StopStringMatcher(stop)
    shown = ""
    for position, char in enumerate(text):
        shown += matcher.feed(char)
        if matcher.matched:
            break
        so_far = text[: position + 1]
        beginnings = [s[:n] for s in stop for n in range(len(s))]
        held = max((len(b) for b in beginnings if so_far.endswith(b)), default=0)
        assert shown == so_far[: len(so_far) - held]


def test_start_of_stop_string_is_held_and_returned():
    assert run(["END"], ["one E", "N", "O two"]) == (["one ", "", "ENO two", ""], None)


def test_stop_string_over_three_pieces_leaves_no_trace():
    assert run(["END"], ["one E", "N", "D two", "more"]) == (["one ", "", "", "", ""], "END")


def test_text_ending_in_a_beginning_keeps_its_tail():
    assert run(["\n\nUser:"], ["bye", "\n\nUs"]) == (["bye", "", "\n\nUs"], None)


def test_no_stop_strings_passes_text_on():
    assert run([], ["a", "b"]) == (["a", "b", ""], None)
