"""The `quantization_config` of compressed-tensors: which schemes we run, and how we write ours.

Uses config.json and module names only; opens no file.

Source: the compressed-tensors project, `quantization/quant_config.py` (fields) and
`utils/match.py` (how targets and ignore lists match).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qwen3_a8w8.checkpoint.names import LINEAR_NAMES, linear_module
from qwen3_a8w8.checkpoint.reader import FLOAT_SCHEME, LinearScheme
from qwen3_a8w8.config import ModelConfig
from qwen3_a8w8.errors import CheckpointError

QUANT_METHOD = "compressed-tensors"
FORMAT = "int-quantized"
SUPPORTED = (
    "supported is int8 W8A8: format 'int-quantized', int8 weights with a scale per output channel "
    "or per tensor, int8 activations; lm_head and any other linear may be ignored"
)

# "naive-quantized" is the name of the same layout without the check for int8; the last is the
# top-level format if every group names its own.
_FORMATS = (FORMAT, "naive-quantized", "mixed-precision")
_WEIGHTS = {
    "num_bits": (8,),
    "type": ("int",),
    "strategy": ("channel", "tensor"),
    "dynamic": (False,),
    "symmetric": (True, False),
}
_ACTIVATIONS = {
    "num_bits": (8,),
    "type": ("int",),
    "strategy": ("token", "tensor", None),
    "dynamic": (True, False, "local"),
    "symmetric": (True, False),
}
# Defaults of compressed-tensors for missing fields.
_DEFAULTS = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": False, "strategy": None}


@dataclass(frozen=True, slots=True)
class Schemes:
    """The schemes that a quantisation config assigns to a model.

    Attributes:
        linears: the scheme of each linear by layer and name.
        notes: deviations from the config, a sentence each.
    """

    linears: dict[tuple[int, str], LinearScheme]
    notes: tuple[str, ...]


def w8a8_quantization_config(ignore: Sequence[str] = ("lm_head",)) -> dict[str, Any]:
    """The `quantization_config` that our writer puts into config.json.

    Args:
        ignore: module paths that stay in floating point.
    """
    return {
        "quant_method": QUANT_METHOD,
        "format": FORMAT,
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {
                    "num_bits": 8,
                    "type": "int",
                    "symmetric": True,
                    "strategy": "channel",
                    "dynamic": False,
                },
                "input_activations": {
                    "num_bits": 8,
                    "type": "int",
                    "symmetric": True,
                    "strategy": "token",
                    "dynamic": True,
                },
                "output_activations": None,
                "format": FORMAT,
            }
        },
        "ignore": list(ignore),
        "kv_cache_scheme": None,
    }


def read_schemes(quantization: Mapping[str, Any], config: ModelConfig, source: str) -> Schemes:
    """Finds the scheme of every linear, refusing what we don't run.

    Args:
        quantization: the `quantization_config` object of config.json.
        config: the model, for the names of its linears.
        source: the file, for messages.

    Raises:
        CheckpointError: names the field, what was found and what is supported.
    """
    # Some releases nest the object once more, next to a sparsity config.
    inner = quantization.get("quantization_config")
    if isinstance(inner, dict):
        quantization = {**quantization, **inner}
    _check_top(quantization, source)
    groups = quantization.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise _refusal(source, "config_groups", groups, "an object with at least one group")
    ignore = _patterns(quantization.get("ignore") or [], "ignore", source)
    by_target: dict[str, str] = {}
    schemes: dict[str, LinearScheme] = {}
    notes: list[str] = []
    for group_name, group in groups.items():
        where = f"config_groups.{group_name}"
        if not isinstance(group, dict):
            raise _refusal(source, where, group, "an object")
        targets = _patterns(group.get("targets"), f"{where}.targets", source)
        schemes[group_name] = _group_scheme(group, where, source)
        notes += _activation_notes(group["input_activations"])
        by_target.update({target: str(group_name) for target in targets})
    if quantization.get("kv_cache_scheme") is not None:
        notes.append(
            "its KV cache scheme isn't used: keys and values are quantised to int8 at run time, "
            "with a scale per token and head"
        )
    linears: dict[tuple[int, str], LinearScheme] = {}
    for layer in range(config.num_layers):
        for name in LINEAR_NAMES:
            module = linear_module(layer, name)
            target = None if _matches(module, ignore) else _best_target(module, by_target)
            linears[layer, name] = FLOAT_SCHEME if target is None else schemes[by_target[target]]
    if _best_target("lm_head", by_target) is not None and not _matches("lm_head", ignore):
        raise _refusal(source, "ignore", ignore, "a list that covers 'lm_head'")
    return Schemes(linears, tuple(dict.fromkeys(notes)))


def _check_top(quantization: Mapping[str, Any], source: str) -> None:
    if quantization.get("format") not in _FORMATS:
        raise _refusal(source, "format", quantization.get("format"), f"{FORMAT!r}")
    sparsity = quantization.get("sparsity_config") or {}
    if not isinstance(sparsity, dict) or sparsity.get("format", "dense") != "dense":
        raise _refusal(source, "sparsity_config", sparsity, "none")
    if quantization.get("transform_config"):
        raise _refusal(source, "transform_config", quantization["transform_config"], "none")


def _group_scheme(group: Mapping[str, Any], where: str, source: str) -> LinearScheme:
    if group.get("format") not in (None, FORMAT, "naive-quantized"):
        raise _refusal(source, f"{where}.format", group["format"], f"{FORMAT!r}")
    if group.get("output_activations") is not None:
        raise _refusal(source, f"{where}.output_activations", group["output_activations"], "null")
    for part, wanted in (("weights", _WEIGHTS), ("input_activations", _ACTIVATIONS)):
        args = group.get(part)
        if not isinstance(args, dict):
            raise _refusal(source, f"{where}.{part}", args, "an object")
        for field, values in wanted.items():
            found = args.get(field, _DEFAULTS[field])
            if found not in values:
                expected = " or ".join(repr(value) for value in values)
                raise _refusal(source, f"{where}.{part}.{field}", found, expected)
    is_symmetric = group["weights"].get("symmetric", True)
    strategy = group["weights"].get("strategy")
    kind = "int8" if is_symmetric else "int8 asymmetric, made symmetric"
    return LinearScheme(
        is_float=False,
        description=f"{kind}, per {strategy}",
        has_zero_point=not is_symmetric,
    )


def _activation_notes(activations: Mapping[str, Any]) -> list[str]:
    notes = []
    if not activations.get("dynamic", False):
        notes.append(
            "its static activation scales aren't used: activations are quantised at run time, "
            "with a scale per token"
        )
    if not activations.get("symmetric", True):
        notes.append("its activations are asymmetric: they are quantised symmetrically here")
    return notes


def _refusal(source: str, field: str, found: object, expected: str) -> CheckpointError:
    return CheckpointError(
        f"{source}: quantization_config: {field} is {found!r}, expected {expected}; {SUPPORTED}"
    )


def _patterns(value: object, where: str, source: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise CheckpointError(
            f"{source}: quantization_config: {where} is {value!r}, expected a list of strings"
        )
    for pattern in value:
        if pattern.startswith("re:"):
            try:
                re.compile(pattern.removeprefix("re:"))
            except re.error as error:
                raise CheckpointError(
                    f"{source}: quantization_config: {where}: {pattern!r} isn't a regular "
                    f"expression: {error}"
                ) from error
    return value


def _matches(module: str, patterns: Iterable[str]) -> bool:
    return _best_target(module, patterns) is not None


def _best_target(module: str, patterns: Iterable[str]) -> str | None:
    """The pattern that matches a module best: its name, a regular expression, or its class."""
    ranked = [(_rank(module, pattern), pattern) for pattern in patterns]
    matching = [(rank, pattern) for rank, pattern in ranked if rank is not None]
    # Of equal ranks the first: min() keeps the order.
    return min(matching, key=lambda item: item[0])[1] if matching else None


def _rank(module: str, pattern: str) -> int | None:
    if pattern == module:
        return 0
    if pattern.startswith("re:"):
        return 1 if re.match(pattern.removeprefix("re:"), module) else None
    return 2 if pattern == "Linear" else None
