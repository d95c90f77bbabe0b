"""Writes docs/configuration.md from the models in `deployments/settings.py`.

    python tools/configuration_doc.py

A test compares the file with what this program would write.
"""

from __future__ import annotations

import json
import types
import typing
from pathlib import Path
from typing import Any

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic.fields import FieldInfo

from deployments.settings import AppSettings, StrictSettings

PATH = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"

HEAD = """# Configuration

The `args` of an application in a YAML file for `serve deploy`, or of `AppSettings` in Python. A key
that isn't here is an error, as is a value out of range. `qwen3-a8w8 serve --help` has the same
settings as options. Written by `python tools/configuration_doc.py` from `deployments/settings.py`.
"""

_SIGNS = ((Ge, "ge", ">= {}"), (Gt, "gt", "> {}"), (Le, "le", "<= {}"), (Lt, "lt", "< {}"))


def text() -> str:
    """The whole page."""
    parts = [HEAD, "## Top level\n", _table(AppSettings)]
    for name, field in AppSettings.model_fields.items():
        section = field.annotation
        if _is_section(section):
            assert section is not None
            summary = (section.__doc__ or "").partition(": ")[2].splitlines()[0]
            summary = summary[:1].upper() + summary[1:]
            parts += [f"## `{name}`\n", f"{summary}\n", _table(section)]
    return "\n".join(parts)


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, StrictSettings)


def _table(model: type[StrictSettings]) -> str:
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for name, field in model.model_fields.items():
        if _is_section(field.annotation):
            continue
        cells = (f"`{name}`", _type(field), f"`{_default(field)}`", field.description or "")
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(rows) + "\n"


def _type(field: FieldInfo) -> str:
    limits = [
        sign.format(f"{getattr(rule, attribute):g}")
        for rule in field.metadata
        for kind, attribute, sign in _SIGNS
        if isinstance(rule, kind)
    ]
    if any(isinstance(rule, MinLen) for rule in field.metadata):
        limits.append("not empty")
    return ", ".join([_name(field.annotation), *limits])


def _name(annotation: Any) -> str:
    """A type in YAML's terms."""
    if annotation is type(None):
        return "null"
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(map(_name, arguments))
    if origin is tuple:
        return f"list of {_name(arguments[0])}"
    if origin is dict:
        return "mapping"
    return {bool: "bool", int: "integer", float: "number", str: "string"}[annotation]


def _default(field: FieldInfo) -> str:
    return json.dumps(field.get_default(call_default_factory=True))


if __name__ == "__main__":
    PATH.write_text(text())
    print(f"wrote {PATH}")
