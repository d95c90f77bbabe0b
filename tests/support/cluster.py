"""One local Ray with the application on fake runners, for all tests that need a cluster."""

import contextlib
import time
import warnings
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import openai

with warnings.catch_warnings():
    # Ray's own models use what pydantic has deprecated.
    warnings.simplefilter("ignore")
    from ray import serve
    from ray.exceptions import RayError
    from ray.serve.exceptions import RayServeException
    from ray.serve.handle import DeploymentHandle

    from deployments.app import APPLICATION_NAME, ENGINE_DEPLOYMENT, build_app
    from deployments.local.application import local_application
    from deployments.local.haproxy import DEFAULT_HTTP_PROXY

from deployments.local.ports import free_port
from deployments.replicas.report import ReplicaReport
from deployments.settings import AppSettings
from qwen3_a8w8.checkpoint.resolve import resolve_model
from qwen3_a8w8.engine.plan import RunnerCapabilities
from qwen3_a8w8.text.tokenizer import Tokenizer
from tests.support.fake_deployment import FAKE_RUNNER, text_capabilities
from tests.support.step_gate import GATED_MODEL, StepGate
from tests.support.text_fixtures import write_tokenizer_files

NUM_REPLICAS = 2
DEADLINE_S = 120.0
"""Most that a test waits for something to come; far more than it takes on a busy machine."""
STALL_TIMEOUT_S = 3600.0
"""Replicas whose steps a test holds aren't to be taken for stalled ones."""
FAILOVER = {"timeout_s": 600.0}
"""On a busy machine the next replica may take minutes to start."""


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

    @property
    def gate(self) -> StepGate:
        """Holds the steps of all replicas, including those that are started meanwhile."""
        return StepGate(self.directory)

    def reports(self) -> list:
        """A report of each of the replicas, once all of them are up."""
        found = []

        def look() -> bool:
            # Not as calls that Serve sends where it likes: all of them may come to one replica.
            found.clear()
            with contextlib.suppress(RayError, RayServeException, TimeoutError):  # none is there
                answers = self.engine.broadcast("report")
                found.extend(answers.results(timeout_s=DEADLINE_S, return_exceptions=True))
            # One that dies on purpose gives its error.
            are_up = [isinstance(answer, ReplicaReport) for answer in found]
            return are_up == [True] * NUM_REPLICAS and self._num_running() == NUM_REPLICAS

        wait_until(look, "all replicas answer")
        return found

    def wait_until_idle(self) -> None:
        """Every sequence has ended and every block is back, on all replicas."""

        def is_idle() -> bool:
            return all(
                r.stats.num_blocks_in_use == 0 and not r.stats.num_running + r.stats.num_waiting
                for r in self.reports()
            )

        wait_until(is_idle, "blocks_in_use is 0")

    def wait_for_sequences(self, count: int) -> None:
        """That many sequences are with the engines; for use while the gate keeps them there."""

        def are_there() -> bool:
            all_stats = [report.stats for report in self.reports()]
            return sum(stats.num_running + stats.num_waiting for stats in all_stats) == count

        wait_until(are_there, f"{count} sequences are with the engines")

    def _num_running(self) -> int:
        status = serve.status().applications[self.name].deployments[ENGINE_DEPLOYMENT]
        return status.replica_states.get("RUNNING", 0)


def wait_until(is_true, what: str) -> None:
    """Asks until the answer is yes."""
    deadline = time.monotonic() + DEADLINE_S
    while not is_true():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what}"
        time.sleep(0.05)


def open_connection(application: RunningApplication):
    """A plain connection, for what no client library does; a context that closes it."""
    url = urlsplit(application.url)
    return contextlib.closing(HTTPConnection(url.hostname, url.port, timeout=DEADLINE_S))


def stream_text(application, prompt, on_begin=lambda: None, *, extra_body, **sampling):
    """The streamed text of a completion that ends by its length.

    `on_begin` is called once there is some of it.
    """
    with application.client() as client:
        stream = client.completions.create(
            model="tiny", prompt=prompt, stream=True, extra_body=extra_body, **sampling
        )
        parts, reasons = [], []
        for chunk in stream:
            parts.append(chunk.choices[0].text)
            reasons.append(chunk.choices[0].finish_reason)
            if len(parts) == 1:
                on_begin()
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
        failover=FAILOVER,
        replicas={
            "num_replicas": NUM_REPLICAS,
            "actor_num_cpus": 0.5,
            "health_check_period_s": 1.0,
            "graceful_shutdown_timeout_s": 5.0,
            "stall_timeout_s": STALL_TIMEOUT_S,
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
def demo_application(beside: RunningApplication, directory: Path):
    """The application with the real demo model, on the cluster of another one.

    The directory is for links to the model's files, and for the gate.
    """
    for path in resolve_model("demo").iterdir():
        (directory / path.name).symlink_to(path)
    settings = AppSettings(
        model=str(directory),
        served_model_name="tiny",
        runner_factory=GATED_MODEL,
        failover=FAILOVER,
        engine={"num_threads": 1, "num_kv_blocks": 257},
        replicas={
            "num_replicas": NUM_REPLICAS,
            # The other application has reserved nearly all there is.
            "batch_router_num_cpus": 0.05,
            "actor_num_cpus": 0.1,
            "health_check_period_s": 1.0,
            "graceful_shutdown_timeout_s": 5.0,
            "stall_timeout_s": STALL_TIMEOUT_S,
        },
        http={"num_cpus": 0.05},
    )
    name = "demo"
    handle = serve.run(build_app(settings), name=name, route_prefix=f"/{name}")
    try:
        engine = serve.get_deployment_handle(ENGINE_DEPLOYMENT, name)
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
