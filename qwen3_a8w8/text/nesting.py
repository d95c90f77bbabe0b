"""Nesting depth of schemas, regular expressions and grammars: their compilers recurse.

Brackets count where they group something, not in strings, comments, character classes and
escapes. The depth of malformed text may be wrong; it can't be compiled anyway.
"""

from __future__ import annotations

import re
from typing import Any

# A missing closing quote or bracket extends the match to the end: so each of these always
# matches, and every text takes linear time at most.
_STRING = r'"(?:\\.|[^"\\\n])*"?'
_CLASS = r"\[\^?\]?(?:\\.|[^]\\])*\]?"
_NOT_IN_REGEX = re.compile(rf"\\.|{_CLASS}", re.DOTALL)
_NOT_IN_GBNF = re.compile(rf"{_STRING}|#[^\n]*|{_CLASS}", re.DOTALL)
_NOT_IN_LARK = re.compile(rf"{_STRING}|//[^\n]*|#[^\n]*|(?P<regex>/(?:\\.|[^/\\\n])*/?)", re.DOTALL)


def depth_of(value: object) -> int:
    """Largest number of nested objects and arrays in a JSON value."""
    depth = 0
    level: list[Any] = [value]
    while True:
        level = [entry for entry in level if isinstance(entry, dict | list)]
        if not level:
            return depth
        depth += 1
        level = [x for e in level for x in (e.values() if isinstance(e, dict) else e)]


def regex_nesting(regex: str) -> int:
    """Largest number of groups of a regular expression that are open at once."""
    return _most_open(_NOT_IN_REGEX.sub("", regex))


def grammar_nesting(grammar: str) -> int:
    """Largest number of brackets of a grammar (Lark's notation or GBNF) that are open at once."""
    if "::=" in grammar:
        return _most_open(_NOT_IN_GBNF.sub("", grammar))
    return _most_open(
        _NOT_IN_LARK.sub(lambda found: _NOT_IN_REGEX.sub("", found["regex"] or ""), grammar)
    )


def _most_open(text: str) -> int:
    depth = deepest = 0
    for bracket in re.findall(r"[](){}[]", text):
        if bracket in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif depth > 0:
            depth -= 1
    return deepest
