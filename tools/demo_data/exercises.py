"""Exercises with one right answer: arithmetic, spelling and counting, sorting."""

from __future__ import annotations

import random
from collections.abc import Sequence

from .dialogue import Dialogue, user
from .lexicon import SORTING_WORDS, SPELLING_WORDS

_SIGN_WORDS = {"+": "plus", "-": "minus", "*": "times"}


def _column_steps(a: int, b: int, sign: str) -> str:
    """Schoolbook steps, ones first, so that every step is a one-digit fact."""
    ones_a, ones_b, tens_a, tens_b = a % 10, b % 10, a // 10, b // 10
    if sign == "+":
        ones = ones_a + ones_b
        carry = ones // 10
        lines = [f"ones: {ones_a} + {ones_b} = {ones}, carry {carry}"]
        lines.append(f"tens: {tens_a} + {tens_b} + {carry} = {tens_a + tens_b + carry}")
    else:
        borrow = int(ones_a < ones_b)
        lines = [
            f"ones: {ones_a + 10 * borrow} - {ones_b} = {ones_a + 10 * borrow - ones_b}, borrow {borrow}"
        ]
        lines.append(f"tens: {tens_a} - {tens_b} - {borrow} = {tens_a - tens_b - borrow}")
    return "\n".join(lines)


def arithmetic(rng: random.Random) -> Dialogue:
    """Sums and differences below 100, products up to 12 times 12."""
    sign = rng.choices("+-*", weights=(5, 5, 3))[0]
    if sign == "*":
        a, b = rng.randint(0, 12), rng.randint(0, 12)
        result = a * b
        thinking = f"This is a product from the times table: {a} * {b} = {result}."
    else:
        top = rng.choice((9, 20, 99, 99))
        a, b = rng.randint(0, top), rng.randint(0, top)
        if sign == "-" and a < b:
            a, b = b, a
        result = a + b if sign == "+" else a - b
        thinking = f"{_column_steps(a, b, sign)}\n{a} {sign} {b} = {result}"
    prompt = rng.choice(
        (
            f"What is {a} {sign} {b}?",
            f"Calculate {a} {sign} {b}.",
            f"{a} {sign} {b} = ?",
            f"How much is {a} {_SIGN_WORDS[sign]} {b}?",
            f"What is {a} {_SIGN_WORDS[sign]} {b}?",
        )
    )
    return Dialogue(
        "arithmetic", f"{a}{sign}{b}", (user(prompt),), f"{a} {sign} {b} = {result}", thinking
    )


def _times(count: int) -> str:
    return "1 time" if count == 1 else f"{count} times"


def spelling(rng: random.Random) -> Dialogue:
    """Spell a word, count its letters or one letter, first and last letter."""
    word = rng.choice(SPELLING_WORDS)
    spelled = "-".join(word)
    kind = rng.choice(("spell", "spell", "length", "letter", "letter", "first", "last"))
    if kind == "spell":
        prompt = rng.choice(
            (f'Spell the word "{word}".', f"How do you spell {word}?", f"Spell {word}.",
             f"Can you spell the word {word}?", f'Write "{word}" letter by letter.')
        )  # fmt: skip
        answer, thinking = spelled, f"I have to spell {word}."
    elif kind == "length":
        prompt = rng.choice(
            (f'How many letters are in "{word}"?', f"How many letters does {word} have?",
             f"Count the letters of the word {word}.")
        )  # fmt: skip
        answer = f"{spelled}: {len(word)} letters."
        thinking = f"I spell {word} and count."
    elif kind == "letter":
        letter = rng.choice(word) if rng.random() < 0.8 else rng.choice("aeiorstn")
        prompt = rng.choice(
            (f'How many times does "{letter}" appear in "{word}"?',
             f'How many "{letter}" are in {word}?',
             f'Count the letter "{letter}" in the word {word}.',
             f'How many {letter}\'s are in "{word}"?')
        )  # fmt: skip
        answer = f'{spelled}: the letter "{letter}" appears {_times(word.count(letter))}.'
        thinking = f'I spell {word} and look for "{letter}".'
    else:
        index = 0 if kind == "first" else -1
        prompt = rng.choice(
            (f'What is the {kind} letter of "{word}"?', f"Which letter does {word} "
             f"{'start' if kind == 'first' else 'end'} with?")
        )  # fmt: skip
        answer = f'{spelled}: the {kind} letter is "{word[index]}".'
        thinking = f"I spell {word} and take the {kind} letter."
    return Dialogue("spelling", prompt, (user(prompt),), answer, thinking)


def _list_text(items: Sequence[object]) -> str:
    return ", ".join(str(item) for item in items)


def sorting(rng: random.Random) -> Dialogue:
    """Sort three to five numbers below 100, or three to five words."""
    count = rng.randint(3, 5)
    is_descending = rng.random() < 0.3
    items: list[int] | list[str]
    if rng.random() < 0.55:
        items = rng.sample(range(100 if rng.random() < 0.75 else 20), count)
        order = "from large to small" if is_descending else "from small to large"
        prompts = (
            f"Sort these numbers {order}: {_list_text(items)}",
            f"Put the numbers {_list_text(items)} in order {order}.",
            f"Order {order}: {_list_text(items)}",
        )
        if not is_descending:
            prompts += (f"Sort: {_list_text(items)}", f"Sort these numbers: {_list_text(items)}")
    else:
        items = rng.sample(SORTING_WORDS, count)
        order = "from z to a" if is_descending else "from a to z"
        prompts = (
            f"Sort these words {order}: {_list_text(items)}",
            f"Put the words {_list_text(items)} in order {order}.",
            f"Order {order}: {_list_text(items)}",
        )
        if not is_descending:
            prompts += (
                f"Sort: {_list_text(items)}",
                f"Sort these words alphabetically: {_list_text(items)}",
            )
    answer = _list_text(sorted(items, reverse=is_descending))  # type: ignore[type-var]
    kind = "numbers" if isinstance(items[0], int) else "words"
    thinking = f"There are {count} {kind} to put in order {order}."
    key = f"{is_descending}|{_list_text(items)}"
    return Dialogue("sorting", key, (user(rng.choice(prompts)),), answer, thinking)
