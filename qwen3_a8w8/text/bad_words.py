"""Bad words: texts that an output must not contain, as sequences of token ids.

Meaning as in vLLM: a word is barred as it is written at the start of a text and after a space, in
the tokens that the tokenizer gives it. Other ways to spell it with tokens aren't found.
"""

from __future__ import annotations

from collections.abc import Iterable

from qwen3_a8w8.text.tokenizer import Tokenizer


def bad_word_ids(
    tokenizer: Tokenizer, words: Iterable[str | tuple[int, ...]]
) -> tuple[tuple[int, ...], ...]:
    """The sequences of ids that spell the words, each once; ids are kept as they are.

    Raises:
        InvalidRequestError: a word can't be written as UTF-8.
    """
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        if not isinstance(word, str):
            found[word] = None
            continue
        bare = word.lstrip() or word
        for text in dict.fromkeys((word, bare, f" {bare}")):
            found[tuple(tokenizer.encode(text))] = None
    return tuple(found)
