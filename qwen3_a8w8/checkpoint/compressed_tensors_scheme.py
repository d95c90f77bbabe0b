"""The `quantization_config` of compressed-tensors: which schemes we run, and how we write ours.

Knows config.json and names of modules; opens no file.

Source: the compressed-tensors project, `quantization/quant_config.py` (fields) and
`utils/match.py` (how targets and ignore lists match).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from qwen3_a8w8.checkpoint.names import linear_modules
from qwen3_a8w8.config import ModelConfig
from qwen3_a8w8.errors import CheckpointError

QUANT_METHOD = "compressed-tensors"
FORMAT = "int-quantized"
SUPPORTED = (
    "supported is format 'int-quantized' with symmetric int8 weights per channel, dynamic "
    "symmetric int8 activations per token, all linears of the decoder layers quantised and "
    "lm_head ignored (W8A8)"
)

_WEIGHTS = {
    "num_bits": 8,
    "type": "int",
    "symmetric": True,
    "strategy": "channel",
    "dynamic": False,
}
_ACTIVATIONS = {
    "num_bits": 8,
    "type": "int",
    "symmetric": True,
    "strategy": "token",
    "dynamic": True,
}
# What compressed-tensors assumes where a field isn't written.
_DEFAULTS = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": False, "strategy": None}


def w8a8_quantization_config() -> dict[str, Any]:
    """The `quantization_config` that our writer puts into config.json."""
    return {
        "quant_method": QUANT_METHOD,
        "format": FORMAT,
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": dict(_WEIGHTS),
                "input_activations": dict(_ACTIVATIONS),
                "output_activations": None,
                "format": FORMAT,
            }
        },
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
    }


def check_scheme(quantization: Mapping[str, Any], config: ModelConfig, source: str) -> None:
    """Refuses every scheme but the one that we run.

    Args:
        quantization: the `quantization_config` object of config.json.
        config: the model, for the names of its linears.
        source: the file, for messages.

    Raises:
        CheckpointError: names the field, what was found and what is supported.
    """

    def refuse(field: str, found: object, expected: str) -> None:
        raise CheckpointError(
            f"{source}: quantization_config: {field} is {found!r}, expected {expected}; {SUPPORTED}"
        )

    if quantization.get("format") != FORMAT:
        refuse("format", quantization.get("format"), f"{FORMAT!r}")
    if quantization.get("kv_cache_scheme") is not None:
        refuse("kv_cache_scheme", quantization["kv_cache_scheme"], "null")
    sparsity = quantization.get("sparsity_config") or {}
    if not isinstance(sparsity, dict) or sparsity.get("format", "dense") != "dense":
        refuse("sparsity_config", sparsity, "none")
    if quantization.get("transform_config"):
        refuse("transform_config", quantization["transform_config"], "none")

    groups = quantization.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        refuse("config_groups", groups, "an object with at least one group")
    targets: list[str] = []
    for group_name, group in dict(groups or {}).items():
        where = f"config_groups.{group_name}"
        if not isinstance(group, dict):
            refuse(where, group, "an object")
        if group.get("format") not in (None, FORMAT):
            refuse(f"{where}.format", group["format"], f"{FORMAT!r}")
        if group.get("output_activations") is not None:
            refuse(f"{where}.output_activations", group["output_activations"], "null")
        for part, wanted in (("weights", _WEIGHTS), ("input_activations", _ACTIVATIONS)):
            args = group.get(part)
            if not isinstance(args, dict):
                refuse(f"{where}.{part}", args, "an object")
            for field, value in wanted.items():
                found = args.get(field, _DEFAULTS[field])
                if found != value:
                    refuse(f"{where}.{part}.{field}", found, repr(value))
        targets += _patterns(group.get("targets"), f"{where}.targets", source)

    ignore = _patterns(quantization.get("ignore") or [], "ignore", source)
    kept = [
        module
        for module in linear_modules(config)
        if _matches(module, ignore) or not _matches(module, targets)
    ]
    if kept:
        more = f" and {len(kept) - 1} more" if len(kept) > 1 else ""
        raise CheckpointError(
            f"{source}: quantization_config: linear {kept[0]}{more} kept in floating point "
            f"(targets {targets!r}, ignore {ignore!r}), expected int8; {SUPPORTED}"
        )
    if _matches("lm_head", targets) and not _matches("lm_head", ignore):
        refuse("ignore", ignore, "a list that covers 'lm_head'")


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
                    f"{source}: quantization_config: {where}: {pattern!r} is no regular "
                    f"expression: {error}"
                ) from error
    return value


def _matches(module: str, patterns: Iterable[str]) -> bool:
    """Whether a pattern is the module's name, a regular expression for it, or its class."""
    return any(
        re.match(pattern.removeprefix("re:"), module) is not None
        if pattern.startswith("re:")
        else pattern in (module, "Linear")
        for pattern in patterns
    )
