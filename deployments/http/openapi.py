"""Additions to the `/openapi.json` that FastAPI generates.

Routes parse their bodies themselves, so that errors have OpenAI's format; the schema of each
body and of errors is added here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from deployments.http.errors import MESSAGES_PATH, OLLAMA_PATH

_REFERENCE = "#/components/schemas/{model}"
_JSON = "application/json"


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """Body of every response with a status of 400 or more."""

    error: ErrorDetail


class MessageErrorDetail(BaseModel):
    """What went wrong, in Anthropic's format."""

    type: str
    message: str


class MessageErrorBody(BaseModel):
    """Body of every response of `/v1/messages` with a status of 400 or more."""

    type: Literal["error"]
    error: MessageErrorDetail


class OllamaErrorBody(BaseModel):
    """Body of every response of `/api/` with a status of 400 or more."""

    error: str


_ERRORS: dict[str, type[BaseModel]] = {
    MESSAGES_PATH: MessageErrorBody,
    OLLAMA_PATH: OllamaErrorBody,
}


def describe_bodies(app: FastAPI, bodies: Mapping[str, type[BaseModel]]) -> None:
    """Completes the application's OpenAPI schema.

    Args:
        app: the application, its routes included.
        bodies: path of a POST route -> model of its body.
    """
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _complete(generate(), bodies)
        return app.openapi_schema

    # FastAPI documents this assignment as the way to extend the schema.
    app.openapi = openapi  # type: ignore[method-assign]


def _complete(schema: dict[str, Any], bodies: Mapping[str, type[BaseModel]]) -> dict[str, Any]:
    errors: list[type[BaseModel]] = [ErrorBody, *_ERRORS.values()]
    models: list[type[BaseModel]] = [*dict.fromkeys(bodies.values()), *errors]
    references, definitions = models_json_schema(
        [(model, "validation") for model in models], ref_template=_REFERENCE
    )
    schema.setdefault("components", {})["schemas"] = definitions["$defs"]
    for path, model in bodies.items():
        schema["paths"][path]["post"]["requestBody"] = {
            "required": True,
            "content": {_JSON: {"schema": references[model, "validation"]}},
        }
    for path, operations in schema["paths"].items():
        kinds = (kind for prefix, kind in _ERRORS.items() if path.startswith(prefix))
        kind: type[BaseModel] = next(kinds, ErrorBody)
        error = {
            "description": "The request failed.",
            "content": {_JSON: {"schema": references[kind, "validation"]}},
        }
        for operation in operations.values():
            # FastAPI's own validation, which no route uses.
            operation["responses"].pop("422", None)
            operation["responses"]["default"] = error
    return schema
