"""The typed builder of the Serve application, from `AppSettings`.

`serve deploy` and `serve run` import it (`deployments.app:build_app`). It owns the
deployments' options and the placement of processes, nothing at run time.
"""

# No postponed annotations here: Serve reads the class from the builder's signature and
# validates the arguments with it.

from typing import Any

from ray import serve
from ray.serve import Application

from deployments.engine.replica import EngineReplica
from deployments.ingress.deployment import Ingress
from deployments.settings import AppSettings

APPLICATION_NAME = "qwen3-a8w8"
ENGINE_DEPLOYMENT = "EngineReplica"
INGRESS_DEPLOYMENT = "Ingress"

# The engine does admission control: it rejects with a reason and Retry-After. Serve's own limits,
# which make requests wait unseen, are set high enough never to apply.
UNLIMITED_REQUESTS = 100_000

# By default Serve runs a deployment's code on a separate thread and collects what a stream yields
# in an unbounded queue: a backlog there is sent token by token and never coalesced. On Serve's own
# loop the next item of a stream is requested once the last message has been sent.
# Nothing here blocks the loop: models run in the actor, long prompts are encoded on threads.
SERVE_ENVIRONMENT = {"RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0"}

# uvloop accepts one connection in each turn of its loop, so that of many requests at once the last
# ones wait behind all the work for the first; asyncio's own loop accepts all that are there.
INGRESS_ENVIRONMENT = {**SERVE_ENVIRONMENT, "RAY_USE_UVLOOP": "0"}


def build_app(settings: AppSettings) -> Application:
    """Builds the application.

    Args:
        settings: the `args` of the YAML, validated.

    Raises:
        ConfigError: an engine setting is outside its range.
    """
    settings.engine.to_config()
    replicas = settings.replicas
    shared: dict[str, Any] = {
        "max_ongoing_requests": UNLIMITED_REQUESTS,
        "health_check_period_s": replicas.health_check_period_s,
        "health_check_timeout_s": replicas.health_check_timeout_s,
        "graceful_shutdown_timeout_s": replicas.graceful_shutdown_timeout_s,
        "graceful_shutdown_wait_loop_s": 0.5,
    }
    engine = serve.deployment(
        name=ENGINE_DEPLOYMENT,
        num_replicas=replicas.num_replicas,
        ray_actor_options=_actor_options(replicas.batch_router_num_cpus, SERVE_ENVIRONMENT),
        placement_group_bundles=[
            {"CPU": replicas.batch_router_num_cpus},
            replicas.actor_bundle(),
        ],
        placement_group_strategy="STRICT_PACK",
        **shared,
    )(EngineReplica)
    ingress = serve.deployment(
        name=INGRESS_DEPLOYMENT,
        num_replicas=settings.http.num_replicas,
        ray_actor_options=_actor_options(settings.http.num_cpus, INGRESS_ENVIRONMENT),
        **shared,
    )(Ingress)
    return ingress.bind(settings, engine.bind(settings))


def _actor_options(num_cpus: float, environment: dict[str, str]) -> dict[str, Any]:
    return {"num_cpus": num_cpus, "runtime_env": {"env_vars": environment}}
