"""One local Ray with the application on fake runners, for all tests that need a cluster."""

import contextlib
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import openai

with warnings.catch_warnings():
    # Ray's own models use what pydantic has deprecated.
    warnings.simplefilter("ignore")
    from ray import serve
    from ray.serve.handle import DeploymentHandle

    from deployments.app import APPLICATION_NAME, ENGINE_DEPLOYMENT, build_app
    from deployments.local.application import local_application
    from deployments.local.haproxy import DEFAULT_HTTP_PROXY

from deployments.local.ports import free_port
from deployments.settings import AppSettings
from qwen3_a8w8.checkpoint.resolve import resolve_model
from qwen3_a8w8.engine.plan import RunnerCapabilities
from qwen3_a8w8.text.tokenizer import Tokenizer
from tests.support.fake_deployment import FAKE_RUNNER, text_capabilities
from tests.support.text_fixtures import write_tokenizer_files

NUM_REPLICAS = 2
DEADLINE_S = 60.0


@dataclass(frozen=True)
class RunningApplication:
    """The application while it runs."""

    url: str
    directory: Path
    tokenizer: Tokenizer = field(repr=False)
    capabilities: RunnerCapabilities = field(repr=False)
    handle: DeploymentHandle = field(repr=False)
    engine: DeploymentHandle = field(repr=False)
    name: str = APPLICATION_NAME
    http_proxy: str = DEFAULT_HTTP_PROXY

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(
            api_key="unused", base_url=f"{self.url}/v1", max_retries=0, timeout=DEADLINE_S
        )

    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=DEADLINE_S)

    def reports(self) -> list:
        """A report of each of the replicas, once all of them are up."""
        found = {}

        def look() -> bool:
            # Serve chooses the replica, by the number of calls it believes to be open there:
            # enough calls at once reach all of them.
            found.clear()
            for response in [self.engine.report.remote() for _ in range(8)]:
                with contextlib.suppress(Exception):  # the replica may be dying on purpose
                    report = response.result(timeout_s=5)
                    found[report.replica_id] = report
            return len(found) == NUM_REPLICAS and self._num_running() == NUM_REPLICAS

        wait_until(look, "all replicas answer")
        return list(found.values())

    def wait_until_idle(self) -> None:
        """Every sequence has ended and every block is back, on all replicas."""

        def is_idle() -> bool:
            return all(
                r.stats.num_blocks_in_use == 0 and not r.stats.num_running + r.stats.num_waiting
                for r in self.reports()
            )

        wait_until(is_idle, "blocks_in_use is 0")

    def _num_running(self) -> int:
        status = serve.status().applications[self.name].deployments[ENGINE_DEPLOYMENT]
        return status.replica_states.get("RUNNING", 0)


def wait_until(is_true, what: str) -> None:
    """Asks until the answer is yes."""
    deadline = time.monotonic() + DEADLINE_S
    while not is_true():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what}"
        time.sleep(0.05)


def stream_text(application, prompt, on_chunk=lambda num_chunks: None, *, extra_body, **sampling):
    """The streamed text of a completion that ends by its length.

    `on_chunk` is called with the number of chunks so far.
    """
    with application.client() as client:
        stream = client.completions.create(
            model="tiny", prompt=prompt, stream=True, extra_body=extra_body, **sampling
        )
        parts, reasons = [], []
        for chunk in stream:
            parts.append(chunk.choices[0].text)
            reasons.append(chunk.choices[0].finish_reason)
            on_chunk(len(parts))
    assert [reason for reason in reasons if reason] == ["length"]
    return "".join(parts)


@contextlib.contextmanager
def running_application(directory: Path, http_proxy: str | None = None):
    """Starts everything, behind that proxy or the server's own choice, and ends it."""
    http_proxy = http_proxy or DEFAULT_HTTP_PROXY
    write_tokenizer_files(directory)
    settings = AppSettings(
        model=str(directory),
        served_model_name="tiny",
        runner_factory=FAKE_RUNNER,
        replicas={
            "num_replicas": NUM_REPLICAS,
            "actor_num_cpus": 0.5,
            "health_check_period_s": 1.0,
            "graceful_shutdown_timeout_s": 5.0,
        },
    )
    with local_application(settings, port=free_port(), http_proxy=http_proxy) as url:
        yield RunningApplication(
            url=url,
            http_proxy=http_proxy,
            directory=directory,
            tokenizer=Tokenizer.from_directory(directory),
            capabilities=text_capabilities(directory),
            handle=serve.get_app_handle(APPLICATION_NAME),
            engine=serve.get_deployment_handle(ENGINE_DEPLOYMENT, APPLICATION_NAME),
        )


@contextlib.contextmanager
def demo_application(beside: RunningApplication):
    """The application with the real demo model, on the cluster of another one."""
    settings = AppSettings(
        model="demo",
        served_model_name="tiny",
        engine={"num_threads": 1, "num_kv_blocks": 257},
        replicas={
            "num_replicas": NUM_REPLICAS,
            # The other application has reserved nearly all there is.
            "batch_router_num_cpus": 0.05,
            "actor_num_cpus": 0.1,
            "health_check_period_s": 1.0,
            "graceful_shutdown_timeout_s": 5.0,
        },
        http={"num_cpus": 0.05},
    )
    name = "demo"
    handle = serve.run(build_app(settings), name=name, route_prefix=f"/{name}")
    try:
        engine = serve.get_deployment_handle(ENGINE_DEPLOYMENT, name)
        directory = resolve_model("demo")
        yield RunningApplication(
            url=f"{beside.url}/{name}",
            directory=directory,
            tokenizer=Tokenizer.from_directory(directory),
            capabilities=engine.capabilities.remote().result(timeout_s=DEADLINE_S),
            handle=handle,
            engine=engine,
            name=name,
        )
    finally:
        serve.delete(name)
