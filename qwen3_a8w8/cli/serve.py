"""`qwen3-a8w8 serve`: the whole application on a local Ray, in one line."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Literal

import typer

from qwen3_a8w8.cli import options


@options.expanded
def serve(
    model: options.Model = "demo",
    served_model_name: Annotated[
        str | None, typer.Option(help="Name in the API; default: the model's own.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    http_proxy: Annotated[
        Literal["haproxy", "python"] | None,
        typer.Option(
            help="HTTP proxy: the HAProxy that Ray ships, or Serve's own; default: haproxy "
            "on Linux, otherwise python."
        ),
    ] = None,
    api_key_file: Annotated[
        str | None,
        typer.Option(help="File with one API key per line; default: $QWEN3_A8W8_API_KEY, if set."),
    ] = None,
    vllm_metrics: Annotated[
        bool,
        typer.Option("--vllm-metrics", help="Give the metrics under vLLM's names too (vllm:*)."),
    ] = False,
    num_replicas: Annotated[int, typer.Option(help="Engine replicas, one device each.")] = 1,
    *,
    engine: options.EngineOptions,
) -> None:
    """Serve a model over HTTP (OpenAI-compatible) until interrupted."""
    from pydantic import ValidationError

    from deployments.local.application import serve_local  # imports ray
    from deployments.local.haproxy import DEFAULT_HTTP_PROXY
    from deployments.settings import AppSettings
    from qwen3_a8w8.errors import ConfigError

    try:
        settings = AppSettings.model_validate(
            {
                "model": model,
                "served_model_name": served_model_name,
                "replicas": {"num_replicas": num_replicas},
                "security": {"api_key_file": api_key_file and os.path.abspath(api_key_file)},
                "metrics": {"vllm_names": vllm_metrics},
                "engine": engine.settings(),
            }
        )
    except ValidationError as error:
        found = error.errors()[0]
        field = ".".join(map(str, found["loc"]))
        raise ConfigError(f"{field} is {found['input']!r}: {found['msg']}") from None
    print(
        f"Loading {settings.model} as {settings.public_name!r} into {num_replicas} "
        f"replica{'s' if num_replicas > 1 else ''}; http://{host}:{port} answers once it is ready.",
        file=sys.stderr,
        flush=True,
    )
    serve_local(settings, host=host, port=port, http_proxy=http_proxy or DEFAULT_HTTP_PROXY)
