"""What a run does: the options of `qwen3-a8w8 bench serve`, checked.

Names and defaults are those of `vllm bench serve`; what isn't vLLM's says so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from qwen3_a8w8.bench.serve.dataset_settings import DatasetSettings, option
from qwen3_a8w8.errors import ConfigError

METRICS = ("ttft", "tpot", "itl", "e2el")
GOODPUT_METRICS = ("ttft", "tpot", "e2el")
ENDPOINTS = {
    "openai": "/v1/completions",
    "vllm": "/v1/completions",
    "openai-chat": "/v1/chat/completions",
}


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Which server, and how it is called."""

    backend: Annotated[
        Literal["openai", "openai-chat", "vllm"],
        option("API: text or chat completions; vllm is openai."),
    ] = "openai"
    base_url: Annotated[
        str | None, option("Base URL of the server, without /v1; default: --host and --port.")
    ] = None
    host: Annotated[str, option("Host of the server.")] = "127.0.0.1"
    port: Annotated[int, option("Port of the server.", min=1, max=65535)] = 8000
    endpoint: Annotated[str | None, option("Path of the API; default: that of --backend.")] = None
    header: Annotated[
        list[str] | None, option("KEY=VALUE: header of every request; several may follow.")
    ] = None
    model: Annotated[
        str | None, option("Model; default: the first that the server lists.", "--model", "-m")
    ] = None
    served_model_name: Annotated[
        str | None, option("The model's name in requests; default: --model.")
    ] = None
    tokenizer: Annotated[
        str | None,
        option(
            "Directory with tokenizer.json, or 'demo'; default: the `root` that the server lists "
            "if it is such a directory, else the server's /tokenize, else lengths are estimated."
        ),
    ] = None
    ready_check_timeout_sec: Annotated[
        int, option("Seconds to wait for a first response; 0: don't wait.", min=0)
    ] = 0

    @property
    def url(self) -> str:
        """Base URL without a slash at its end."""
        if self.base_url is not None:
            return self.base_url.rstrip("/")
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def path(self) -> str:
        """Path of the API.

        Raises:
            ConfigError: it isn't one of the backend's.
        """
        expected = ENDPOINTS[self.backend]
        path = self.endpoint or expected
        is_chat = path.endswith("chat/completions")
        if not path.endswith("completions") or is_chat != (self.backend == "openai-chat"):
            raise ConfigError(
                f"--endpoint is {path!r}, but --backend {self.backend} expects a path such as "
                f"{expected}; leave --endpoint out or change --backend"
            )
        return path

    def headers(self) -> dict[str, str]:
        """The headers of `--header`.

        Raises:
            ConfigError: one isn't KEY=VALUE.
        """
        return key_values("--header", self.header)


@dataclass(frozen=True, slots=True)
class TrafficSettings:
    """When and how requests are sent."""

    request_rate: Annotated[
        float, option("Requests per second; inf: all at once, as --max-concurrency allows.")
    ] = math.inf
    burstiness: Annotated[
        float,
        option("Shape of the gamma distribution of intervals; 1: Poisson, less: bursts."),
    ] = 1.0
    max_concurrency: Annotated[
        int | None, option("Most requests in flight; default: any number.", min=1)
    ] = None
    num_warmups: Annotated[int, option("Requests sent before, which don't count.", min=0)] = 0
    ramp_up_strategy: Annotated[
        Literal["linear", "exponential"] | None, option("How the request rate increases.")
    ] = None
    ramp_up_start_rps: Annotated[int | None, option("Request rate at the start.", min=0)] = None
    ramp_up_end_rps: Annotated[int | None, option("Request rate at the end.", min=0)] = None
    ignore_eos: Annotated[
        bool,
        option("Generate to the requested length; always with random prompts.", "--ignore-eos"),
    ] = False
    logprobs: Annotated[int | None, option("Log-probabilities per token.", min=0)] = None
    temperature: Annotated[
        float | None, option("Sampling temperature; default: the server's.", min=0)
    ] = None
    top_p: Annotated[float | None, option("Nucleus sampling; default: the server's.")] = None
    top_k: Annotated[int | None, option("Keep k tokens; default: the server's.")] = None
    min_p: Annotated[float | None, option("Least probability; default: the server's.")] = None
    frequency_penalty: Annotated[float | None, option("Default: the server's.")] = None
    presence_penalty: Annotated[float | None, option("Default: the server's.")] = None
    repetition_penalty: Annotated[float | None, option("Default: the server's.")] = None
    extra_body: Annotated[str | None, option("JSON object: more fields of every request.")] = None

    def __post_init__(self) -> None:
        """Checks ranges and what goes together.

        Raises:
            ConfigError: something is out of range, or doesn't go together.
        """
        for name, value in (("request-rate", self.request_rate), ("burstiness", self.burstiness)):
            if not value > 0:
                raise ConfigError(f"--{name} is {value}, expected more than 0")
        self._check_ramp_up()
        _ = self.extra_fields

    @property
    def extra_fields(self) -> dict[str, Any]:
        """The fields of `--extra-body`.

        Raises:
            ConfigError: it is no JSON object.
        """
        try:
            value = json.loads(self.extra_body or "{}")
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise ConfigError(f"--extra-body is {self.extra_body!r:.80}, expected a JSON object")
        return value

    @property
    def sampling_fields(self) -> dict[str, Any]:
        """Sampling parameters that were given."""
        names = (
            *("temperature", "top_p", "top_k", "min_p"),
            *("frequency_penalty", "presence_penalty", "repetition_penalty"),
        )
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def _check_ramp_up(self) -> None:
        start, end = self.ramp_up_start_rps, self.ramp_up_end_rps
        if self.ramp_up_strategy is None:
            if start is not None or end is not None:
                raise ConfigError(
                    "--ramp-up-start-rps and --ramp-up-end-rps need --ramp-up-strategy"
                )
            return
        if not math.isinf(self.request_rate):
            raise ConfigError("--ramp-up-strategy sets the request rate; leave --request-rate out")
        if start is None or end is None:
            raise ConfigError("--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps")
        # The first interval has the first rate, so 0 would never send anything.
        if not 1 <= start <= end:
            raise ConfigError(
                f"--ramp-up-start-rps is {start} and --ramp-up-end-rps {end}, expected at least 1 "
                "and no less at the end"
            )


@dataclass(frozen=True, slots=True)
class ResultSettings:
    """What is reported, and where to."""

    percentile_metrics: Annotated[
        str, option("Metrics to report: of ttft, tpot, itl, e2el, separated by commas.")
    ] = "ttft,tpot,itl"
    metric_percentiles: Annotated[str, option("Percentiles, separated by commas.")] = "99"
    goodput: Annotated[
        list[str] | None,
        option("METRIC:MILLISECONDS for ttft, tpot or e2el; several may follow."),
    ] = None
    label: Annotated[str | None, option("Prefix of the result's file; default: --backend.")] = None
    metadata: Annotated[
        list[str] | None, option("KEY=VALUE: goes into the result; several may follow.")
    ] = None
    save_result: Annotated[
        bool, option("Write the result as JSON with vLLM's keys.", "--save-result")
    ] = False
    save_detailed: Annotated[
        bool,
        option("Include lengths, times, texts and errors of each request.", "--save-detailed"),
    ] = False
    append_result: Annotated[
        bool, option("Append the result to its file, as a line of its own.", "--append-result")
    ] = False
    result_dir: Annotated[Path | None, option("Directory for the result; default: here.")] = None
    result_filename: Annotated[
        str | None, option("File for the result; default: from label, rate, model and time.")
    ] = None
    json_file: Annotated[
        Path | None,
        option("File for provenance, machine and result, as the other benchmarks.", "--json"),
    ] = None
    plot: Annotated[
        Path | None, option("Picture of the run (needs the `plots` extra); not vLLM's.")
    ] = None
    disable_tqdm: Annotated[bool, option("Show no progress.", "--disable-tqdm")] = False
    compare_engine: Annotated[
        bool,
        option(
            "Then run the same requests on the engine in this process and report what HTTP and "
            "Serve add; for a server of ours on this machine; not vLLM's.",
            "--compare-engine",
        ),
    ] = False

    def __post_init__(self) -> None:
        """Checks names and numbers.

        Raises:
            ConfigError: one isn't valid.
        """
        _ = self.metrics, self.percentiles, self.goodput_ms
        key_values("--metadata", self.metadata)
        for flag, path in (("--json", self.json_file), ("--plot", self.plot)):
            if path is not None and (not path.parent.is_dir() or path.is_dir()):
                raise ConfigError(f"{flag} {path}: expected a file in a directory that exists")

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the reported metrics.

        Raises:
            ConfigError: one is unknown.
        """
        names = tuple(name.strip() for name in self.percentile_metrics.split(","))
        if unknown := [name for name in names if name not in METRICS]:
            raise ConfigError(
                f"--percentile-metrics has {unknown}, expected of {', '.join(METRICS)}"
            )
        return names

    @property
    def percentiles(self) -> tuple[float, ...]:
        """The percentiles, 0 to 100.

        Raises:
            ConfigError: one is no such number.
        """
        try:
            values = tuple(float(part) for part in self.metric_percentiles.split(","))
        except ValueError:
            values = (math.nan,)
        if not all(0 <= value <= 100 for value in values):
            raise ConfigError(
                f"--metric-percentiles is {self.metric_percentiles!r}, expected numbers from 0 to "
                "100, separated by commas"
            )
        return values

    @property
    def goodput_ms(self) -> dict[str, float]:
        """Milliseconds that a good request takes at most, by metric.

        Raises:
            ConfigError: an entry isn't METRIC:MILLISECONDS.
        """
        limits = {}
        for entry in self.goodput or ():
            name, _, value = entry.partition(":")
            try:
                limit = float(value)
            except ValueError:
                limit = math.nan
            if name not in GOODPUT_METRICS or not limit >= 0:
                raise ConfigError(
                    f"--goodput has {entry!r}, expected METRIC:MILLISECONDS with one of "
                    f"{', '.join(GOODPUT_METRICS)}"
                )
            limits[name] = limit
        return limits


@dataclass(frozen=True, slots=True)
class ServeBench:
    """Everything of a run."""

    server: ServerSettings
    dataset: DatasetSettings
    traffic: TrafficSettings
    result: ResultSettings

    @property
    def ignores_eos(self) -> bool:
        """Whether outputs go to their requested length."""
        return self.traffic.ignore_eos or self.dataset.dataset_name == "random"


def key_values(flag: str, entries: Sequence[str] | None) -> dict[str, str]:
    """Entries KEY=VALUE as a dict.

    Raises:
        ConfigError: one has no "=".
    """
    pairs = {}
    for entry in entries or ():
        key, equals, value = entry.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{flag} has {entry!r}, expected KEY=VALUE")
        pairs[key.strip()] = value.strip()
    return pairs
