"""Routes that describe the model: its card, its tokenizer, and what the server runs it with."""

from __future__ import annotations

import time
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response

from deployments.http.streaming import json_response
from deployments.ingress.service import ModelService
from qwen3_a8w8.openai.model_card import ModelCard, make_model_card, make_model_list
from qwen3_a8w8.version import __version__


def add_model_routes(app: FastAPI, service: ModelService) -> None:
    """Adds the routes to an application."""
    started_s = int(time.time())

    async def card() -> ModelCard:
        capabilities = await service.engine.capabilities()
        return make_model_card(
            service.name,
            root=service.root,
            created=started_s,
            max_model_len=capabilities.max_model_len,
        )

    @app.get("/v1/models")
    async def models() -> Response:
        return json_response(make_model_list([await card()]))

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        service.check_model(name)
        return json_response(await card())

    @app.get("/tokenizer_info")
    async def tokenizer_info() -> Response:
        """What clients with a remote tokenizer read: special tokens and chat template."""
        prompts = service.prompts
        special = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"))
        body: dict[str, Any] = {
            **special,
            **prompts.tokenizer.special_tokens,
            "vocab_size": prompts.tokenizer.vocab_size,
            "chat_template": prompts.template_source,
        }
        return JSONResponse(body)

    @app.get("/server_info")
    async def server_info() -> Response:
        """The model, and the capabilities of the engines that run it."""
        capabilities = await service.engine.capabilities()
        return JSONResponse(
            {
                "version": __version__,
                "model": service.name,
                "root": service.root,
                "decode_batch_sizes": list(capabilities.decode_batch_sizes),
                "prefill_chunk_tokens": capabilities.prefill_chunk_tokens,
                "max_model_len": capabilities.max_model_len,
                "block_size": capabilities.block_size,
                "num_kv_blocks": capabilities.num_kv_blocks,
                "vocab_size": capabilities.vocab_size,
                "num_layers": capabilities.num_layers,
                **capabilities.description,
            }
        )
