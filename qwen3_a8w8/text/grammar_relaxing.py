"""Relaxes the schemas of a grammar that can't be compiled, or says which keyword is the cause.

A lenient schema loses the keywords that the compiler can't compile; a strict one is refused, and
the message names the tool and the keyword's path.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from qwen3_a8w8.text.json_grammar import Schema, relaxed_schema
from qwen3_a8w8.text.structured import StructuredOutput

_SCHEMA_RULE = re.compile(r"(?:arguments_(?P<tool>\d+)|answer): %json (?P<schema>\{.*\})")

Compile = Callable[[Schema, str | None, bool], str | None]
"""Tries a schema with a white space pattern and lenience; returns what is wrong, or None."""


@dataclass(frozen=True, slots=True)
class Relaxed:
    """What became of a structured output that can't be compiled.

    Attributes:
        structured: without the offending keywords; None: it is refused.
        removed: the keywords' paths, with the tool they belong to.
        error: why it is refused; None: relaxing doesn't help, the compiler's message counts.
    """

    structured: StructuredOutput | None
    removed: tuple[str, ...] = ()
    error: str | None = None


def relaxed(structured: StructuredOutput, compile_schema: Compile) -> Relaxed:
    """Relaxes the lenient schemas of a structured output.

    Args:
        structured: it can't be compiled.
        compile_schema: tries one schema.
    """
    if structured.json is not None:
        schema = json.loads(structured.text)
        pattern = structured.whitespace_pattern
        found = _relax(schema, structured.is_lenient, "", compile_schema, pattern)
        if isinstance(found, str):
            return Relaxed(None, error=found)
        if found is None:
            return Relaxed(None)
        return Relaxed(replace(structured, json=found[0]), found[1])
    if structured.grammar is None or not structured.tools:
        return Relaxed(None)
    removed: list[str] = []
    lines = structured.text.split("\n")
    for number, line in enumerate(lines):
        rule = _SCHEMA_RULE.fullmatch(line)
        if rule is None:
            continue
        owner = (
            "" if rule["tool"] is None else f"the tool {structured.tools[int(rule['tool'])]!r}, "
        )
        schema = json.loads(rule["schema"])
        options = schema.pop("x-guidance")
        if compile_schema(schema, None, options["lenient"]) is None:
            continue
        found = _relax(schema, options["lenient"], owner, compile_schema, None)
        if isinstance(found, str):
            return Relaxed(None, error=found)
        if found is None:
            return Relaxed(None)
        text = json.dumps({**found[0], "x-guidance": options}, ensure_ascii=False)
        lines[number] = f"{line[: rule.start('schema')]}{text}".replace("\x7f", "\\u007f")
        removed += found[1]
    if not removed:
        return Relaxed(None)
    return Relaxed(replace(structured, grammar="\n".join(lines)), tuple(removed))


def _relax(
    schema: Any, is_lenient: bool, owner: str, compile_schema: Compile, pattern: str | None
) -> tuple[Schema, tuple[str, ...]] | str | None:
    """The relaxed schema with the paths removed, a refusal, or None where nothing helps."""

    def does_compile(each: Schema) -> bool:
        return compile_schema(each, pattern, is_lenient) is None

    found = relaxed_schema(schema, does_compile)
    if found is None:
        return f"{owner}{compile_schema(schema, pattern, is_lenient)}"
    if not found[1]:
        return None
    kept, places = found
    if is_lenient:
        return kept, tuple(owner + place for place in places)
    problem = compile_schema(schema, pattern, False)
    return f"{owner}{' and '.join(places)} can't be enforced: {problem}; remove it, or strict"
