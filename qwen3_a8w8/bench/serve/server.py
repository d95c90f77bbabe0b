"""What a server says about itself: its models, and its counters before and after a load.

Counters are read from `/metrics` in Prometheus text format: ours for the decode batches, ours or
vLLM's for draft tokens. A server without them is measured all the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from qwen3_a8w8.errors import ConfigError

OWN_PREFIX = "qwen3_a8w8_"
VLLM_PREFIX = "vllm:"

Labels = frozenset[tuple[str, str]]
Counters = Mapping[tuple[str, Labels], float]
"""Values by name and labels, those of several replicas or engines added up."""

_INSTANCE_LABELS = {"replica", "engine", "model_name"}


@dataclass(frozen=True, slots=True)
class ServedModel:
    """An entry of `/v1/models`.

    Attributes:
        name: its id.
        root: where the server has it from, or None.
    """

    name: str
    root: str | None


async def first_model(session: aiohttp.ClientSession, url: str) -> ServedModel:
    """The first model that the server lists.

    Raises:
        ConfigError: it can't be reached, or lists none.
    """
    body = await _get_json(session, f"{url}/v1/models")
    try:
        entry = body["data"][0]
        return ServedModel(str(entry["id"]), entry.get("root"))
    except (KeyError, IndexError, TypeError) as error:
        raise ConfigError(f"{url}/v1/models lists no model: {body!r:.200}; give --model") from error


async def description(session: aiohttp.ClientSession, url: str) -> dict[str, Any] | None:
    """What `/version` says, if the server is ours; None otherwise."""
    try:
        body = await _get_json(session, f"{url}/version")
    except ConfigError:
        return None
    return body if isinstance(body, dict) and "device" in body and "experimental" in body else None


async def prompt_tokens(
    session: aiohttp.ClientSession, url: str, model: str, prompts: Sequence[str], *, is_chat: bool
) -> list[tuple[int, ...]]:
    """Token ids that the model gets of each prompt, by the server's `/tokenize`.

    Raises:
        ConfigError: it has no such route, or can't do it.
    """
    found = []
    for prompt in prompts:
        body: dict[str, Any] = {"model": model}
        body |= (
            {"messages": [{"role": "user", "content": prompt}]} if is_chat else {"prompt": prompt}
        )
        try:
            async with session.post(f"{url}/tokenize", json=body) as response:
                response.raise_for_status()
                found.append(tuple((await response.json())["tokens"]))
        except (aiohttp.ClientError, KeyError, ValueError) as error:
            raise ConfigError(f"{url}/tokenize can't be used: {error}") from error
    return found


async def counters(session: aiohttp.ClientSession, url: str) -> Counters:
    """The counters of `/metrics`; empty if there are none."""
    try:
        async with session.get(f"{url}/metrics") as response:
            if response.status != 200:
                return {}
            return parse_counters(await response.text())
    except (aiohttp.ClientError, ValueError):
        return {}


def parse_counters(text: str) -> Counters:
    """Counters of a text in Prometheus format; a series per name and labels but the instance's.

    Raises:
        ValueError: it isn't in that format.
    """
    sums: dict[tuple[str, Labels], float] = {}
    for family in text_string_to_metric_families(text):
        if family.type != "counter":
            continue
        for sample in family.samples:
            if sample.name.endswith("_total"):
                kept = sample.labels.items() - {
                    (name, value)
                    for name, value in sample.labels.items()
                    if name in _INSTANCE_LABELS
                }
                key = (sample.name.removesuffix("_total"), frozenset(kept))
                sums[key] = sums.get(key, 0.0) + sample.value
    return sums


def growth(before: Counters, after: Counters) -> Counters:
    """What a load has added, by name and labels; a counter that went back counts from 0."""
    return {
        key: value - before.get(key, 0.0) if value >= before.get(key, 0.0) else value
        for key, value in after.items()
    }


def engine_figures(grown: Counters) -> dict[str, Any] | None:
    """How our engines worked: the split between B1 and B16, and how full the batches were.

    Args:
        grown: our counters.

    Returns:
        None if the server has none of ours.
    """
    batches = {
        int(dict(labels)["batch_size"]): value
        for (name, labels), value in grown.items()
        if name == f"{OWN_PREFIX}decode_batches"
    }
    if not any(name.startswith(OWN_PREFIX) for name, _ in grown):
        return None
    rows = _own(grown, "decode_rows")
    num_batches = sum(batches.values())
    num_slots = sum(size * count for size, count in batches.items())
    queried = _own(grown, "prefix_cache_queries")
    return {
        "decode_batches": {f"b{size}": int(count) for size, count in sorted(batches.items())},
        "b1_batch_share": batches.get(1, 0.0) / num_batches if num_batches else None,
        # Each B1 dispatch has one live row; all others were in larger batches.
        "b1_row_share": batches.get(1, 0.0) / rows if rows else None,
        "decode_fill_ratio": rows / num_slots if num_slots else None,
        "mean_rows_per_batch": rows / num_batches if num_batches else None,
        "num_steps": int(_own(grown, "steps")),
        "num_preemptions": int(_own(grown, "num_preemptions")),
        "prefix_cache_hit_rate": _own(grown, "prefix_cache_hits") / queried if queried else None,
        "device_time_s": _own(grown, "device_time_seconds"),
        "host_gap_s": _own(grown, "host_gap_seconds"),
    }


def spec_decode_figures(grown: Counters) -> dict[str, Any]:
    """vLLM's keys about draft tokens; none without any."""
    for prefix in (VLLM_PREFIX, OWN_PREFIX):
        name = f"{prefix}spec_decode_num_"
        drafts = grown.get((f"{name}drafts", frozenset()), 0.0)
        draft_tokens = grown.get((f"{name}draft_tokens", frozenset()), 0.0)
        accepted = grown.get((f"{name}accepted_tokens", frozenset()), 0.0)
        if not drafts or not draft_tokens:
            continue
        by_position = {
            int(dict(labels)["position"]): value
            for (key, labels), value in grown.items()
            if key == f"{name}accepted_tokens_per_pos"
        }
        return {
            "spec_decode_acceptance_rate": accepted / draft_tokens * 100,
            "spec_decode_acceptance_length": 1 + accepted / drafts,
            "spec_decode_num_drafts": int(drafts),
            "spec_decode_draft_tokens": int(draft_tokens),
            "spec_decode_accepted_tokens": int(accepted),
            "spec_decode_per_position_acceptance_rates": [
                by_position[position] / drafts for position in sorted(by_position)
            ],
        }
    return {}


def _own(grown: Counters, name: str) -> float:
    return grown.get((f"{OWN_PREFIX}{name}", frozenset()), 0.0)


async def _get_json(session: aiohttp.ClientSession, url: str) -> Any:
    try:
        async with session.get(url) as response:
            if response.status != 200:
                raise ConfigError(
                    f"{url} gives HTTP {response.status}: {await response.text():.200}"
                )
            return await response.json(content_type=None)
    except (aiohttp.ClientError, ValueError) as error:
        raise ConfigError(
            f"{url} can't be read: {error}; is the server running, and --base-url right?"
        ) from error
