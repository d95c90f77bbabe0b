"""How deep schemas, regular expressions and grammars are nested: their compilers recurse.

Brackets count where they group something, not in strings, comments, character classes and
escapes. What is malformed may be measured wrongly; it can't be compiled anyway.
"""

from __future__ import annotations

import re
from typing import Any

# What a closing quote or bracket would end may also go on to the end: so each of these always
# matches, and no text takes more than linear time.
_STRING = r'"(?:\\.|[^"\\\n])*"?'
_CLASS = r"\[\^?\]?(?:\\.|[^]\\])*\]?"
_NOT_IN_REGEX = re.compile(rf"\\.|{_CLASS}", re.DOTALL)
_NOT_IN_GBNF = re.compile(rf"{_STRING}|#[^\n]*|{_CLASS}", re.DOTALL)
_NOT_IN_LARK = re.compile(rf"{_STRING}|//[^\n]*|#[^\n]*|(?P<regex>/(?:\\.|[^/\\\n])*/?)", re.DOTALL)


def depth_of(value: object) -> int:
    """Objects and arrays of a JSON value that lie in one another, at most."""
    depth = 0
    level: list[Any] = [value]
    while True:
        level = [entry for entry in level if isinstance(entry, dict | list)]
        if not level:
            return depth
        depth += 1
        level = [x for e in level for x in (e.values() if isinstance(e, dict) else e)]


def regex_nesting(regex: str) -> int:
    """Groups of a regular expression that are open at once, at most."""
    return _most_open(_NOT_IN_REGEX.sub("", regex))


def grammar_nesting(grammar: str) -> int:
    """Brackets of a grammar, in Lark's notation or GBNF, that are open at once, at most."""
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
