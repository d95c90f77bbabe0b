"""The routes of Ollama's API, translated to chat and text completions.

Models aren't pulled, copied or removed here: those routes don't exist, nor do embeddings.
"""

from __future__ import annotations

import hashlib
from datetime import datetime, timezone
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from deployments.http.framing import JsonLinesFraming
from deployments.http.streaming import generation_response, json_response
from deployments.ingress.service import ModelService
from qwen3_a8w8.ollama.request import OWN_NAMES, OllamaChatRequest, OllamaGenerateRequest
from qwen3_a8w8.ollama.writer import OllamaChatWriter, OllamaGenerateWriter, loaded_answer
from qwen3_a8w8.openai.chat.choice import ChatParsing
from qwen3_a8w8.openai.request import RequestModel, own_names, parse_request
from qwen3_a8w8.openai.response import ResponseContext, ResponseIdentity

OLLAMA_VERSION = "0.13.0"
"""Version of Ollama whose API this is; clients refuse servers that they think are too old."""


class ShowRequest(RequestModel):
    """Body of `POST /api/show`; older clients call the model `name`."""

    model: str | None = None
    name: str | None = None


def add_ollama_routes(app: FastAPI, service: ModelService, *, keep_alive_s: float | None) -> None:
    """Adds the routes to an application."""
    framing = JsonLinesFraming()
    loaded_at = datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")

    @app.post("/api/chat")
    async def chat(request: Request) -> Response:
        body = parse_request(OllamaChatRequest, await request.body())
        service.check_model(body.model_name)
        if not body.messages:
            return json_response(loaded_answer(body.model, is_chat=True))
        identity, translated = ResponseIdentity.new("ollama-", body.model), body.to_chat()
        with own_names(OWN_NAMES):
            started = await service.start_chat(translated, identity, OllamaChatWriter)
        return await generation_response(started, body, keep_alive_s, framing)

    @app.post("/api/generate")
    async def generate(request: Request) -> Response:
        body = parse_request(OllamaGenerateRequest, await request.body())
        service.check_model(body.model_name)
        if not body.prompt:
            return json_response(loaded_answer(body.model, is_chat=False))
        identity = ResponseIdentity.new("ollama-", body.model)
        with own_names(OWN_NAMES):
            if body.raw:
                started = await service.start_text(body.to_completion(), identity, _raw_writer)
            else:
                chat = body.to_chat()
                started = await service.start_chat(chat, identity, OllamaGenerateWriter)
        return await generation_response(started, body, keep_alive_s, framing)

    @app.get("/api/version")
    async def version() -> Response:
        return JSONResponse({"version": OLLAMA_VERSION})

    async def card() -> dict[str, Any]:
        fingerprint = str((await service.engine.capabilities()).description.get("fingerprint"))
        return {
            "name": service.name,
            "model": service.name,
            "size": service.num_weight_bytes,
            "digest": hashlib.sha256(fingerprint.encode()).hexdigest(),
            "details": _DETAILS,
        }

    @app.get("/api/tags")
    async def tags() -> Response:
        return JSONResponse({"models": [{**await card(), "modified_at": loaded_at}]})

    @app.get("/api/ps")
    async def running() -> Response:
        """The models in memory; this one stays there."""
        limit = (await service.engine.capabilities()).max_model_len
        loaded = {"expires_at": "9999-12-31T23:59:59Z", "size_vram": 0, "context_length": limit}
        return JSONResponse({"models": [{**await card(), **loaded}]})

    @app.post("/api/show")
    async def show(request: Request) -> Response:
        body = parse_request(ShowRequest, await request.body())
        name = body.model or body.name
        service.check_model(name and name.removesuffix(":latest"))
        capabilities = await service.engine.capabilities()
        has_template = service.prompts.template_source is not None
        return JSONResponse(
            {
                "modelfile": f"FROM {service.root}",
                "parameters": "\n".join(
                    f"{name} {value}" for name, value in service.defaults.sampling_fields().items()
                ),
                "template": service.prompts.template_source or "",
                "modified_at": loaded_at,
                "details": _DETAILS,
                "model_info": {
                    "general.architecture": "qwen3",
                    "general.file_type": "A8W8",
                    "qwen3.context_length": capabilities.max_model_len,
                    "qwen3.block_count": capabilities.num_layers,
                    "qwen3.vocab_size": capabilities.vocab_size,
                },
                "capabilities": ["completion", *(["tools", "thinking"] if has_template else [])],
            }
        )


def _raw_writer(context: ResponseContext) -> OllamaGenerateWriter:
    return OllamaGenerateWriter(context, ChatParsing(reasoning=None))


_DETAILS = {
    "parent_model": "",
    "format": "safetensors",
    "family": "qwen3",
    "families": ["qwen3"],
    "parameter_size": "",
    "quantization_level": "A8W8",
}
