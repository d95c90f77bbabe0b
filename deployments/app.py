"""The typed builder: settings in, a bound Serve application out.

This is what `serve deploy` and `serve run` import (`deployments.app:build_app`); it owns
the deployments' options and the placement of processes, and nothing that runs later.
"""

# No postponed annotations here: Serve looks at the class in the builder's signature to know
# that it has to validate the arguments with it.

from typing import Any

from ray import serve
from ray.serve import Application

from deployments.engine.replica import EngineReplica
from deployments.ingress.deployment import Ingress
from deployments.settings import AppSettings

APPLICATION_NAME = "qwen3-a8w8"
ENGINE_DEPLOYMENT = "EngineReplica"
INGRESS_DEPLOYMENT = "Ingress"

# Admission is the engine's: it refuses with a reason and Retry-After. Serve's own limits, which
# make requests wait where nobody sees them, are set out of the way.
UNLIMITED_REQUESTS = 100_000

# Serve runs a deployment's code on a thread of its own unless it is told otherwise, and takes
# whatever a stream yields into a queue without a bound: what piles up there is sent token by token
# and never coalesced. On Serve's own loop a stream is asked for more when the last message is gone.
# Nothing here blocks the loop: models run in the actor, long prompts are read on threads.
SERVE_ENVIRONMENT = {"RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0"}


def build_app(settings: AppSettings) -> Application:
    """Builds the application.

    Args:
        settings: the `args` of the YAML, validated.

    Raises:
        ConfigError: an engine setting is outside its range.
    """
    settings.engine.to_config()
    replicas = settings.replicas
    engine = serve.deployment(
        name=ENGINE_DEPLOYMENT,
        num_replicas=replicas.num_replicas,
        ray_actor_options=_actor_options(replicas.router_num_cpus),
        placement_group_bundles=[
            {"CPU": replicas.router_num_cpus},
            replicas.actor_bundle(),
        ],
        placement_group_strategy="STRICT_PACK",
        max_ongoing_requests=UNLIMITED_REQUESTS,
        health_check_period_s=replicas.health_check_period_s,
        health_check_timeout_s=replicas.health_check_timeout_s,
        graceful_shutdown_timeout_s=replicas.graceful_shutdown_timeout_s,
        graceful_shutdown_wait_loop_s=0.5,
    )(EngineReplica)
    ingress = serve.deployment(
        name=INGRESS_DEPLOYMENT,
        num_replicas=settings.http.num_replicas,
        ray_actor_options=_actor_options(settings.http.num_cpus),
        max_ongoing_requests=UNLIMITED_REQUESTS,
        health_check_period_s=replicas.health_check_period_s,
        health_check_timeout_s=replicas.health_check_timeout_s,
        graceful_shutdown_timeout_s=replicas.graceful_shutdown_timeout_s,
        graceful_shutdown_wait_loop_s=0.5,
    )(Ingress)
    return ingress.bind(settings, engine.bind(settings))


def _actor_options(num_cpus: float) -> dict[str, Any]:
    return {"num_cpus": num_cpus, "runtime_env": {"env_vars": SERVE_ENVIRONMENT}}
