"""JSON schemas as the grammar compiler takes them, and how one that it can't compile is relaxed.

Schemas of tools come from programs that the caller didn't write; one keyword that the compiler
doesn't know, or can't compile, must not make a request impossible. `relaxed_schema` finds the
fewest keywords whose removal makes a schema compile. Knows no compiler: the caller passes one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from qwen3_a8w8.text.structured import WHITESPACE

Schema = dict[str, Any]
Place = tuple[str | int, ...]
"""Keys and positions from the schema's root to a value."""

_MAPS = ("properties", "$defs", "definitions")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLES = ("items", "additionalProperties", "not", "if", "then", "else", "contains")
_KEPT = ("properties", "$defs", "definitions", "anyOf", "oneOf", "allOf", "prefixItems", "items")
"""Keywords whose schemas are relaxed one by one."""


def json_options(whitespace_pattern: str | None, *, is_lenient: bool) -> Any:
    """llguidance's options of a schema.

    Args:
        whitespace_pattern: as in `StructuredOutput`.
        is_lenient: keywords that it doesn't implement are ignored.
    """
    options: dict[str, Any] = {"lenient": is_lenient}
    if whitespace_pattern == "":
        return {**options, "whitespace_flexible": False}
    return {**options, "whitespace_pattern": whitespace_pattern or WHITESPACE}


def without_empty_keywords(schema: Any) -> Any:
    """A schema without keywords that allow everything, which compilers may not know.

    These are `uniqueItems: false` and a `propertyNames` that every name matches.
    """
    if not isinstance(schema, Mapping):
        return schema
    kept: Schema = {}
    for name, value in schema.items():
        is_empty = (name == "uniqueItems" and value is False) or (
            name == "propertyNames" and value in (True, {}, {"type": "string"})
        )
        if not is_empty:
            kept[name] = _of_subschemas(name, value, without_empty_keywords)
    return kept


def _of_subschemas(name: str, value: Any, convert: Callable[[Any], Any]) -> Any:
    if name in (*_MAPS, "patternProperties") and isinstance(value, Mapping):
        return {key: convert(each) for key, each in value.items()}
    if name in _LISTS and isinstance(value, list):
        return [convert(each) for each in value]
    return convert(value) if name in _SINGLES else value


def relaxed_schema(
    schema: Mapping[str, Any], does_compile: Callable[[Schema], bool]
) -> tuple[Schema, list[str]] | None:
    """The schema without the keywords that keep it from being compiled.

    Starts from its bare structure and adds keywords in halves, so that a schema of many keywords
    with few bad ones costs few trials.

    Args:
        schema: one that can't be compiled.
        does_compile: tries a schema.

    Returns:
        What is left, and paths of the removed keywords such as `properties.x.pattern`; None if not
        even the bare structure can be compiled.
    """
    for structure in (_KEPT, _MAPS):
        if does_compile(_with(schema, structure, [])):
            items = _keywords(schema, (), structure)
            kept = _keep([], items, functools.partial(_try, schema, structure, does_compile))
            removed = [".".join(map(str, place)) for place in items if place not in set(kept)]
            return _with(schema, structure, kept), removed
    return None


def _try(
    schema: Mapping[str, Any],
    structure: Sequence[str],
    does_compile: Callable[[Schema], bool],
    kept: Sequence[Place],
) -> bool:
    return does_compile(_with(schema, structure, kept))


def _keep(
    base: list[Place], items: Sequence[Place], does_compile: Callable[[list[Place]], bool]
) -> list[Place]:
    """`base`, and those of `items` that can be added to it."""
    if not items or does_compile([*base, *items]):
        return [*base, *items]
    if len(items) == 1:
        return base
    middle = len(items) // 2
    return _keep(_keep(base, items[:middle], does_compile), items[middle:], does_compile)


def _keywords(schema: Any, place: Place, structure: Sequence[str]) -> list[Place]:
    """Places of all keywords outside the structure."""
    found: list[Place] = []
    if not isinstance(schema, Mapping):
        return found
    for name, value in schema.items():
        if name not in structure:
            found.append((*place, name))
        for key, each in _children(name, value):
            if name in structure:
                found += _keywords(each, (*place, name, *key), structure)
    return found


def _children(name: str, value: Any) -> list[tuple[Place, Any]]:
    if name in _MAPS and isinstance(value, Mapping):
        return [((key,), each) for key, each in value.items()]
    if isinstance(value, list):
        return [((position,), each) for position, each in enumerate(value)]
    return [((), value)]


def _with(schema: Mapping[str, Any], structure: Sequence[str], kept: Sequence[Place]) -> Schema:
    """The structure of a schema with some of its keywords."""
    chosen = set(kept)

    def build(value: Any, place: Place) -> Any:
        if not isinstance(value, Mapping):
            return value
        built: Schema = {}
        for name, each in value.items():
            here = (*place, name)
            if name not in structure:
                if here in chosen:
                    built[name] = each
            elif name in _MAPS and isinstance(each, Mapping):
                built[name] = {key: build(sub, (*here, key)) for key, sub in each.items()}
            elif isinstance(each, list):
                built[name] = [build(sub, (*here, i)) for i, sub in enumerate(each)]
            else:
                built[name] = build(each, here)
        return built

    built: Schema = build(schema, ())
    return built
