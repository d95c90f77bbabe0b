"""Bodies of `GET /v1/models`: OpenAI's fields, and vLLM's, which benchmarks read."""

from __future__ import annotations

import hashlib
from typing import Any

from qwen3_a8w8.openai.response import ResponseModel


class ModelPermission(ResponseModel):
    """What may be done with a model; OpenAI's API had it once, and old clients still read it."""

    id: str
    object: str
    created: int
    allow_create_engine: bool
    allow_sampling: bool
    allow_logprobs: bool
    allow_search_indices: bool
    allow_view: bool
    allow_fine_tuning: bool
    organization: str
    group: str | None
    is_blocking: bool


class ModelCard(ResponseModel):
    """One served model.

    Attributes:
        root: what it was loaded from: a name or a directory.
        parent: of an adapter; always null.
        max_model_len: longest prompt and output together, in tokens.
    """

    id: str
    object: str
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int
    permission: list[ModelPermission]


class ModelList(ResponseModel):
    """All served models."""

    object: str
    data: list[ModelCard]


def make_model_card(name: str, *, root: str, created: int, max_model_len: int) -> ModelCard:
    """Card of a served model; `max_model_len` in tokens."""
    allowed: Any = dict.fromkeys(("allow_sampling", "allow_logprobs", "allow_view"), True)
    denied: Any = dict.fromkeys(
        ("allow_create_engine", "allow_search_indices", "allow_fine_tuning", "is_blocking"), False
    )
    permission = ModelPermission(
        id=f"modelperm-{hashlib.sha256(name.encode()).hexdigest()[:24]}",
        object="model_permission",
        created=created,
        organization="*",
        group=None,
        **allowed,
        **denied,
    )
    return ModelCard(
        id=name,
        object="model",
        created=created,
        owned_by="qwen3-a8w8",
        root=root,
        parent=None,
        max_model_len=max_model_len,
        permission=[permission],
    )


def make_model_list(cards: list[ModelCard]) -> ModelList:
    """Body of `GET /v1/models`."""
    return ModelList(object="list", data=cards)
