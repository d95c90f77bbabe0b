"""The stateless front: HTTP routes and the methods of the Python handle.

Both go to one `ModelService`. Text becomes token ids here and comes back here; the
engines see tokens only.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve.handle import DeploymentHandle

from deployments.http.api import build_api
from deployments.http.security import add_security
from deployments.ingress.handle_methods import HandleMethods, Prompt, Sampling
from deployments.ingress.service import ModelService
from deployments.metrics.http_metrics import HttpMetrics, IngressReport
from deployments.replicas.client import ReplicaClient, broadcast
from deployments.replicas.refusal_log import RefusalFilter
from deployments.settings import AppSettings
from qwen3_a8w8.checkpoint.resolve import DEMO, resolve_model
from qwen3_a8w8.text.outputs import GenerationOutput, OutputDelta


@serve.ingress()
class Ingress:
    """The application's ingress deployment; `app.py` gives it its options.

    `sampling` is a `SamplingParams`, a dict of its fields over the checkpoint's defaults, or
    None. A `prompt` is text, a list of token ids, or a list of chat messages. `priority` (lower
    goes first), `timeout_s` (seconds, after which the answer ends as it is, with finish_reason
    "length") and `cache_salt` (the prefix cache is shared only under the same one) are those of
    the HTTP bodies.
    """

    def __init__(self, settings: AppSettings, engine: DeploymentHandle[Any]) -> None:
        """Reads the checkpoint's text files.

        Raises:
            CheckpointError: the model can't be found, or a file is missing or damaged.
        """
        logging.getLogger("ray.serve").addFilter(RefusalFilter())  # Serve logs by this name
        self._settings = settings
        directory = resolve_model(settings.model)
        self._service = ModelService(
            settings.public_name,
            directory,
            ReplicaClient(engine, settings.failover),
            decode_batch_sizes=settings.engine.decode_batch_sizes,
            # Benchmarks load their tokenizer from it.
            root=str(directory) if settings.model == DEMO else settings.model,
        )
        self._methods = HandleMethods(self._service)

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Called by Serve after the constructor: the routes over this object's service."""
        http = self._settings.http
        app = build_api(
            self._service,
            max_body_bytes=http.max_body_bytes,
            keep_alive_s=http.keep_alive_s,
            # A response that only one of several processes knows would be found by chance.
            max_stored_responses=http.max_stored_responses if http.num_replicas == 1 else 0,
            ingress_reports=self._ingress_reports,
            has_vllm_names=self._settings.metrics.vllm_names,
            has_page=http.page,
        )
        add_security(app, self._settings.security, http)
        app.add_middleware(HttpMetrics, stats=self._service.http_stats)  # the outermost
        # What is there stays. A burst of requests makes the collector look through everything
        # several times; through what libraries have imported that takes a third of a second.
        gc.collect()
        gc.freeze()
        return app

    async def http_report(self) -> IngressReport:
        """What this process has done; called by the one that is asked for `/metrics`."""
        return self._service.report(serve.get_replica_context().replica_id.unique_id)

    async def _ingress_reports(self, timeout_s: float) -> list[IngressReport]:
        """The reports of all ingress processes, ordered by their id; one that crashes has none.

        Raises:
            EngineDeadError: one doesn't answer within `timeout_s` seconds.
        """
        if self._settings.http.num_replicas == 1:
            return [await self.http_report()]
        context = serve.get_replica_context()
        handle = serve.get_deployment_handle(context.deployment, context.app_name)
        reports = await broadcast(handle, "http_report", IngressReport, timeout_s)
        return sorted(reports, key=lambda report: report.ingress_id)

    async def generate(
        self,
        prompt: Prompt,
        sampling: Sampling = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        *,
        priority: int = 0,
        timeout_s: float | None = None,
        cache_salt: str | None = None,
    ) -> GenerationOutput:
        """Answers one prompt.

        Raises:
            InvalidRequestError: the request can't be served.
            CapacityError: the engines are full.
            RequestFailedError: it can't be computed; other requests go on.
            EngineDeadError: no engine could finish it.
        """
        return await self._methods.generate(
            prompt,
            sampling,
            chat_template_kwargs,
            options=_options(priority, timeout_s, cache_salt),
        )

    async def generate_stream(
        self,
        prompt: Prompt,
        sampling: Sampling = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        *,
        priority: int = 0,
        timeout_s: float | None = None,
        cache_salt: str | None = None,
    ) -> AsyncGenerator[OutputDelta, None]:
        """Answers one prompt bit by bit; call it on `handle.options(stream=True)`.

        Yields:
            New text and ids; the last delta has the finish reason.

        Raises:
            InvalidRequestError: the request can't be served.
            CapacityError: the engines are full.
            RequestFailedError: it can't be computed; other requests go on.
            EngineDeadError: no engine could finish it.
        """
        async for delta in self._methods.generate_stream(
            prompt,
            sampling,
            chat_template_kwargs,
            options=_options(priority, timeout_s, cache_salt),
        ):
            yield delta

    async def generate_batch(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        *,
        priority: int = 0,
        timeout_s: float | None = None,
        cache_salt: str | None = None,
    ) -> list[GenerationOutput]:
        """Answers exactly 1 or 16 prompts as one true batch, in the order of the prompts.

        Raises:
            UnsupportedBatchSizeError: another number of prompts; nothing else was looked at.
            InvalidRequestError: a prompt can't be served; none was begun.
            CapacityError: the engines are full.
            RequestFailedError: it can't be computed; other requests go on.
            EngineDeadError: no engine could finish it.
        """
        return await self._methods.generate_batch(
            prompts,
            sampling,
            chat_template_kwargs,
            options=_options(priority, timeout_s, cache_salt),
        )


def _options(priority: int, timeout_s: float | None, cache_salt: str | None) -> dict[str, Any]:
    return {"priority": priority, "timeout_s": timeout_s, "cache_salt": cache_salt}
