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

import typer

from qwen3_a8w8.errors import ConfigError

METRICS = ("ttft", "tpot", "itl", "e2el")
GOODPUT_METRICS = ("ttft", "tpot", "e2el")
ENDPOINTS = {"openai": "/v1/completions", "openai-chat": "/v1/chat/completions"}


def _option(text: str, *names: str, **limits: Any) -> Any:
    return typer.Option(*names, help=text, **limits)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Which server, and how it is called."""

    backend: Annotated[
        Literal["openai", "openai-chat"], _option("API: text or chat completions.")
    ] = "openai"
    base_url: Annotated[
        str | None, _option("Base URL of the server, without /v1; default: --host and --port.")
    ] = None
    host: Annotated[str, _option("Host of the server.")] = "127.0.0.1"
    port: Annotated[int, _option("Port of the server.", min=1, max=65535)] = 8000
    endpoint: Annotated[str | None, _option("Path of the API; default: that of --backend.")] = None
    header: Annotated[
        list[str] | None, _option("KEY=VALUE: header of every request; several may follow.")
    ] = None
    model: Annotated[
        str | None, _option("Model; default: the first that the server lists.", "--model", "-m")
    ] = None
    served_model_name: Annotated[
        str | None, _option("The model's name in requests; default: --model.")
    ] = None
    tokenizer: Annotated[
        str | None,
        _option(
            "Directory with tokenizer.json, or 'demo'; default: the `root` that the server lists "
            "if it is such a directory, else the server's /tokenize, else lengths are estimated."
        ),
    ] = None
    ready_check_timeout_sec: Annotated[
        int, _option("Seconds to wait for a first response; 0: don't wait.", min=0)
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
class DatasetSettings:
    """What is sent."""

    dataset_name: Annotated[
        Literal["random", "sharegpt", "custom"],
        _option("Prompts: random tokens, or from a file in ShareGPT's format or JSON lines."),
    ] = "random"
    dataset_path: Annotated[
        Path | None,
        _option('ShareGPT\'s JSON, or JSON lines {"prompt": ..., "output_tokens": ...}.'),
    ] = None
    num_prompts: Annotated[int, _option("Requests to send.", min=1)] = 1000
    input_len: Annotated[
        int | None, _option("Tokens of a random prompt; same as --random-input-len.", min=1)
    ] = None
    output_len: Annotated[
        int | None, _option("Tokens to generate, whatever the dataset says.", min=1)
    ] = None
    random_input_len: Annotated[int, _option("Tokens of a random prompt.", min=1)] = 1024
    random_output_len: Annotated[int, _option("Tokens to generate for a random prompt.", min=1)] = (
        128
    )
    random_range_ratio: Annotated[
        str,
        _option(
            "Lengths are drawn from [len * (1 - ratio), len * (1 + ratio)], ratio in [0, 1); or "
            'as JSON, {"input": 0.2, "output": 0.5}.'
        ),
    ] = "0.0"
    random_prefix_len: Annotated[
        int, _option("Tokens that all random prompts begin with, on top of their length.", min=0)
    ] = 0
    sharegpt_output_len: Annotated[
        int | None, _option("Tokens to generate; default: the length of the file's answer.", min=1)
    ] = None
    custom_output_len: Annotated[
        int | None, _option("Tokens to generate; default: the line's output_tokens.", min=1)
    ] = None
    disable_shuffle: Annotated[
        bool, _option("Take the file's prompts in its order.", "--disable-shuffle")
    ] = False
    no_oversample: Annotated[
        bool,
        _option(
            "Send fewer requests, not the same again, if the file is short.", "--no-oversample"
        ),
    ] = False
    skip_chat_template: Annotated[
        bool,
        _option(
            "Send the prompts of a custom dataset to the text API as they are.",
            "--skip-chat-template",
        ),
    ] = False
    seed: Annotated[int, _option("Of prompts, lengths and arrivals.", min=0)] = 0

    def __post_init__(self) -> None:
        """Checks what goes together.

        Raises:
            ConfigError: it doesn't.
        """
        is_random = self.dataset_name == "random"
        if is_random and self.dataset_path is not None:
            raise ConfigError(
                f"--dataset-path {self.dataset_path} with --dataset-name random; choose sharegpt "
                "or custom for a file"
            )
        if not is_random and (self.dataset_path is None or not self.dataset_path.is_file()):
            raise ConfigError(
                f"--dataset-path is {self.dataset_path}, expected a file for --dataset-name "
                f"{self.dataset_name}"
            )
        _ = self.range_ratios

    @property
    def input_tokens(self) -> int:
        """Mean tokens of a random prompt, without the prefix."""
        return self.random_input_len if self.input_len is None else self.input_len

    @property
    def output_tokens(self) -> int | None:
        """Tokens to generate; None: as the file says."""
        by_name = {
            "random": self.random_output_len,
            "sharegpt": self.sharegpt_output_len,
            "custom": self.custom_output_len,
        }
        return by_name[self.dataset_name] if self.output_len is None else self.output_len

    @property
    def range_ratios(self) -> tuple[float, float]:
        """Of input and output.

        Raises:
            ConfigError: it is no number in [0, 1), nor an object of two.
        """
        try:
            value = json.loads(self.random_range_ratio)
            pair = (value["input"], value["output"]) if isinstance(value, dict) else (value, value)
            ratios = (float(pair[0]), float(pair[1]))
        except (ValueError, TypeError, KeyError):
            ratios = (math.nan, math.nan)
        if not all(0 <= ratio < 1 for ratio in ratios):
            raise ConfigError(
                f"--random-range-ratio is {self.random_range_ratio!r}, expected a number in "
                '[0, 1), or {"input": x, "output": y}'
            )
        return ratios


@dataclass(frozen=True, slots=True)
class TrafficSettings:
    """When and how requests are sent."""

    request_rate: Annotated[
        float, _option("Requests per second; inf: all at once, as --max-concurrency allows.")
    ] = math.inf
    burstiness: Annotated[
        float,
        _option("Shape of the gamma distribution of intervals; 1: Poisson, less: bursts."),
    ] = 1.0
    max_concurrency: Annotated[
        int | None, _option("Most requests in flight; default: any number.", min=1)
    ] = None
    num_warmups: Annotated[int, _option("Requests sent before, which don't count.", min=0)] = 0
    ramp_up_strategy: Annotated[
        Literal["linear", "exponential"] | None, _option("How the request rate increases.")
    ] = None
    ramp_up_start_rps: Annotated[int | None, _option("Request rate at the start.", min=0)] = None
    ramp_up_end_rps: Annotated[int | None, _option("Request rate at the end.", min=0)] = None
    ignore_eos: Annotated[
        bool,
        _option("Generate to the requested length; always with random prompts.", "--ignore-eos"),
    ] = False
    logprobs: Annotated[int | None, _option("Log-probabilities per token.", min=0)] = None
    temperature: Annotated[
        float | None, _option("Sampling temperature; default: the server's.", min=0)
    ] = None
    top_p: Annotated[float | None, _option("Nucleus sampling; default: the server's.")] = None
    top_k: Annotated[int | None, _option("Keep k tokens; default: the server's.")] = None
    min_p: Annotated[float | None, _option("Least probability; default: the server's.")] = None
    frequency_penalty: Annotated[float | None, _option("Default: the server's.")] = None
    presence_penalty: Annotated[float | None, _option("Default: the server's.")] = None
    repetition_penalty: Annotated[float | None, _option("Default: the server's.")] = None
    extra_body: Annotated[str | None, _option("JSON object: more fields of every request.")] = None

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
        str, _option("Metrics to report: of ttft, tpot, itl, e2el, separated by commas.")
    ] = "ttft,tpot,itl"
    metric_percentiles: Annotated[str, _option("Percentiles, separated by commas.")] = "99"
    goodput: Annotated[
        list[str] | None,
        _option("METRIC:MILLISECONDS for ttft, tpot or e2el; several may follow."),
    ] = None
    label: Annotated[str | None, _option("Prefix of the result's file; default: --backend.")] = None
    metadata: Annotated[
        list[str] | None, _option("KEY=VALUE: goes into the result; several may follow.")
    ] = None
    save_result: Annotated[
        bool, _option("Write the result as JSON with vLLM's keys.", "--save-result")
    ] = False
    save_detailed: Annotated[
        bool,
        _option("Include lengths, times, texts and errors of each request.", "--save-detailed"),
    ] = False
    append_result: Annotated[
        bool, _option("Append the result to its file, as a line of its own.", "--append-result")
    ] = False
    result_dir: Annotated[Path | None, _option("Directory for the result; default: here.")] = None
    result_filename: Annotated[
        str | None, _option("File for the result; default: from label, rate, model and time.")
    ] = None
    json_file: Annotated[
        Path | None,
        _option("File for provenance, machine and result, as the other benchmarks.", "--json"),
    ] = None
    plot: Annotated[
        Path | None, _option("Picture of the run (needs the `plots` extra); not vLLM's.")
    ] = None
    disable_tqdm: Annotated[bool, _option("Show no progress.", "--disable-tqdm")] = False
    compare_engine: Annotated[
        bool,
        _option(
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
