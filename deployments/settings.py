"""All settings that a YAML file may have, with ranges and units.

Unknown keys fail and the message lists the valid ones: Ray Serve itself ignores
unknown keys. Deprecated keys are accepted for one version with a warning. This module
doesn't know how the settings are used.
"""

from __future__ import annotations

import difflib
import logging
import math
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from qwen3_a8w8.config import DECODE_BATCH_SIZES, EngineConfig

RUNNER_FACTORY = "qwen3_a8w8.runner.model_runner:ModelRunner.load"


DEPRECATED_KEYS_END = "0.2.0"
"""Version from which deprecated keys are unknown keys."""

logger = logging.getLogger(__name__)


class StrictSettings(BaseModel):
    """A section in which an unknown key is an error that lists the valid ones.

    Attributes:
        deprecated_keys: old name -> new name of renamed keys, accepted until
            `DEPRECATED_KEYS_END`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    deprecated_keys: ClassVar[Mapping[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, values: Any) -> Any:
        if isinstance(values, dict):
            values = cls._with_new_names(values)
            for key in values:
                if key not in cls.model_fields:
                    close = difflib.get_close_matches(str(key), cls.model_fields, n=1)
                    hint = f"; did you mean {close[0]!r}?" if close else ""
                    raise ValueError(
                        f"unknown key {key!r} in {cls.__name__}{hint} "
                        f"Valid keys: {', '.join(sorted(cls.model_fields))}"
                    )
        return values

    @classmethod
    def _with_new_names(cls, values: dict[str, Any]) -> dict[str, Any]:
        """The values with deprecated keys renamed, and a warning for each of them."""
        for old, new in cls.deprecated_keys.items():
            if old not in values:
                continue
            if new in values:
                raise ValueError(
                    f"{cls.__name__} has both {old!r} and {new!r}; {old!r} is the deprecated name "
                    f"of {new!r}: remove {old!r}"
                )
            message = (
                f"the key {old!r} in {cls.__name__} is deprecated and is removed in version "
                f"{DEPRECATED_KEYS_END}; rename it to {new!r}"
            )
            # The log is for a deployed YAML, the warning for settings built in Python.
            logger.warning("%s", message)
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            values = {new if key == old else key: value for key, value in values.items()}
        return values


class EngineSettings(StrictSettings):
    """Section `engine`: how each replica runs the model; the fields of `EngineConfig`."""

    device: str = Field(default="auto", description="auto, cpu, npu or cuda; auto logs its choice")
    decode_batch_sizes: tuple[int, ...] = Field(
        default=DECODE_BATCH_SIZES,
        description="compiled decode batch sizes, a subset of [1, 16] with 1",
    )
    block_size: int = Field(
        default=32, description="tokens per KV block, 16 to 256, a multiple of 16"
    )
    num_kv_blocks: int | None = Field(
        default=None,
        description="KV blocks including the scratch block, at least 2; overrides the next two",
    )
    kv_cache_bytes: int | None = Field(default=None, description="bytes for the KV cache")
    kv_memory_fraction: float = Field(
        default=0.8,
        description="share (0 to 1] of the memory free after warm-up for the KV cache",
    )
    kv_cache_dtype: str = Field(
        default="int8", description="int8 (with a scale cache), or bf16 (experimental)"
    )
    max_model_len: int | None = Field(
        default=None,
        description="longest prompt plus output in tokens, which must fit the KV cache; null: the "
        "checkpoint's limit, or what fits the KV cache if less",
    )
    prefill_chunk_tokens: int = Field(
        default=512, description="most prompt tokens in one prefill dispatch, 16 to 8192"
    )
    prefill_layers_per_dispatch: int | None = Field(
        default=None,
        description="layers per prefill dispatch, after which others may decode and an abort "
        "takes effect; null: all",
    )
    max_decode_stall_ms: float | None = Field(
        default=1000.0,
        description="milliseconds by which a prefill dispatch may delay running streams; chunks "
        "are shortened by measured speed to stay within it; null: no bound",
    )
    max_running_requests: int = Field(
        default=16, description="sequences that decode together, 1 to 16"
    )
    max_queued_requests: int = Field(
        default=256, description="waiting requests beyond which new ones get a 503"
    )
    max_queued_tokens: int = Field(
        default=1_000_000,
        description="tokens of waiting requests beyond which new ones get a 503",
    )
    enable_prefix_caching: bool = Field(
        default=True, description="reuse KV blocks of equal prefixes"
    )
    lookahead: int = Field(
        default=1, description="plans sent before the previous result has arrived, 0 or 1"
    )
    num_threads: int | None = Field(
        default=None, description="CPU threads; null: the cores that the actor may use"
    )
    isa: str | None = Field(
        default=None,
        description="instruction path of the CPU kernels, e.g. avx2 (`qwen3-a8w8 doctor` lists "
        "them); null: the fastest that the actor's machine can run",
    )
    packed_cache_dir: str | None = Field(
        default="auto",
        description="directory for packed weights, which speed up the next start and are shared "
        "by the replicas of a node; auto: $QWEN3_A8W8_CACHE or ~/.cache/qwen3-a8w8/packed; null: "
        "none",
    )
    use_mmap: bool = Field(
        default=True,
        description="map packed weights, one copy for all replicas of a node; false: each replica "
        "reads its own copy, which can use huge pages where mapped files can't",
    )
    enable: tuple[str, ...] = Field(default=(), description="experimental flags to switch on")

    def to_config(self) -> EngineConfig:
        """Converts the section to a range-checked `EngineConfig`.

        Raises:
            ConfigError: a value is outside its range.
        """
        return EngineConfig(**self.model_dump())


class ReplicaSettings(StrictSettings):
    """Section `replicas`: the number of engines and the cluster resources of each one.

    A replica is two processes in one placement group: the batch router, which needs few
    resources, and the actor, which runs the model.
    """

    deprecated_keys: ClassVar[Mapping[str, str]] = {"router_num_cpus": "batch_router_num_cpus"}

    num_replicas: int = Field(default=1, ge=1, le=1024, description="engines; one device each")
    batch_router_num_cpus: float = Field(
        default=0.1, ge=0, le=64, description="CPUs that the batch router's process reserves"
    )
    actor_num_cpus: float = Field(
        default=1,
        ge=0,
        le=1024,
        description="CPUs that the actor reserves; not a limit on its threads",
    )
    actor_num_npus: int = Field(
        default=0,
        ge=0,
        le=1,
        description="Ray resource NPU per actor: 0 or 1; fractions can't be isolated",
    )
    actor_resources: dict[str, float] = Field(
        default_factory=dict, description="custom Ray resources per actor, name -> amount"
    )
    health_check_period_s: float = Field(
        default=2.0, gt=0, le=600, description="seconds between health checks"
    )
    health_check_timeout_s: float = Field(
        default=30.0,
        gt=0,
        le=3600,
        description="seconds that a health check may take before it counts as failed",
    )
    stall_timeout_s: float = Field(
        default=120.0,
        gt=0,
        le=86400,
        description="a replica with work whose step counter doesn't change this long is restarted; "
        "keep it well above the slowest prefill chunk",
    )
    graceful_shutdown_timeout_s: float = Field(
        default=20.0,
        ge=0,
        le=3600,
        description="seconds that streams get to end when a replica shuts down",
    )

    @model_validator(mode="after")
    def _check_resources(self) -> ReplicaSettings:
        for name, amount in self.actor_resources.items():
            if name in ("CPU", "GPU", "NPU", "memory"):
                raise ValueError(
                    f"actor_resources names {name!r}, which has a key of its own or isn't "
                    "supported; use actor_num_cpus or actor_num_npus"
                )
            if not (math.isfinite(amount) and amount > 0):
                raise ValueError(f"actor_resources[{name!r}] is {amount!r}, expected more than 0")
        if not self.actor_bundle():
            raise ValueError(
                "the actor reserves nothing; set actor_num_cpus, actor_num_npus or actor_resources"
            )
        return self

    def actor_bundle(self) -> dict[str, float]:
        """Placement-group bundle of the actor."""
        bundle: dict[str, float] = dict(self.actor_resources)
        if self.actor_num_cpus:
            bundle["CPU"] = self.actor_num_cpus
        if self.actor_num_npus:
            bundle["NPU"] = float(self.actor_num_npus)
        return bundle


class FailoverSettings(StrictSettings):
    """Section `failover`: how long a client's stream survives failing replicas."""

    deprecated_keys: ClassVar[Mapping[str, str]] = {"max_deaths": "max_engine_crashes"}

    max_resumes: int = Field(
        default=10,
        ge=0,
        le=100,
        description="times that one request is resumed after its replica is lost",
    )
    max_engine_crashes: int = Field(
        default=2,
        ge=0,
        le=100,
        description="consecutive crashes of an engine while it computes one request; one more "
        "ends the request as their cause",
    )
    timeout_s: float = Field(
        default=120.0,
        ge=0,
        le=3600,
        description="seconds without a replica that accepts the request before it fails",
    )


class HttpSettings(StrictSettings):
    """Section `http`: the ingress, which is stateless and scales separately."""

    num_replicas: int = Field(default=1, ge=1, le=1024, description="ingress processes")
    num_cpus: float = Field(default=0.1, ge=0, le=64, description="CPUs per ingress process")
    max_body_bytes: int = Field(
        default=16 * 2**20,
        ge=1024,
        description="longest request body in bytes; longer ones get a 413",
    )
    max_stored_responses: int = Field(
        default=256,
        ge=0,
        le=100_000,
        description="responses stored in memory for previous_response_id of /v1/responses, 64 MiB "
        "at most; 0: none. With several ingress processes none are stored",
    )
    keep_alive_s: float | None = Field(
        default=15.0,
        gt=0,
        le=3600,
        description="seconds after which an idle stream gets an SSE comment, so that proxies "
        "don't close its connection; null: never",
    )
    max_header_bytes: int = Field(
        default=32 * 2**10,
        ge=1024,
        description="longest path and headers together in bytes; longer ones get a 431",
    )
    page: bool = Field(
        default=True,
        description="serve the page at `/`: a chat and a view of the engines; its files need no "
        "API key, what it asks for does",
    )


class MetricsSettings(StrictSettings):
    """Section `metrics`: what `/metrics` has."""

    vllm_names: bool = Field(
        default=False,
        description="also give the engines' values under vLLM's names (vllm:*), for dashboards, "
        "autoscalers and gateways made for vLLM",
    )


class SecuritySettings(StrictSettings):
    """Section `security`: API keys, their limits and CORS; see docs/security.md."""

    api_key_file: str | None = Field(
        default=None,
        min_length=1,
        description="file with one API key per line, on the node of each ingress process; null: "
        "none",
    )
    api_key_env: str | None = Field(
        default=None,
        min_length=1,
        description="environment variable with API keys, separated by commas, which then must be "
        "set; null: QWEN3_A8W8_API_KEY if that is set",
    )
    max_concurrent_requests_per_key: int | None = Field(
        default=None,
        ge=1,
        description="concurrent requests per key and ingress process; more get a 429; null: any",
    )
    max_requests_per_minute_per_key: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="requests per key and ingress process in 60 seconds; more get a 429; null: any",
    )
    cors_allow_origins: tuple[str, ...] = Field(
        default=(),
        description="origins, such as https://chat.example.com, whose pages may send requests "
        "from a browser; '*' for all",
    )

    @property
    def has_key_limits(self) -> bool:
        """Whether a limit per key is set."""
        limits = (self.max_concurrent_requests_per_key, self.max_requests_per_minute_per_key)
        return any(limit is not None for limit in limits)


class AppSettings(StrictSettings):
    """The application: `args` in the YAML."""

    model: str = Field(
        default="demo", min_length=1, description="checkpoint directory, `demo`, or a hub id"
    )
    served_model_name: str | None = Field(
        default=None,
        min_length=1,
        description="name that clients use; null: the last part of `model`",
    )
    engine: EngineSettings = Field(default_factory=EngineSettings)
    replicas: ReplicaSettings = Field(default_factory=ReplicaSettings)
    http: HttpSettings = Field(default_factory=HttpSettings)
    security: SecuritySettings = Field(default_factory=SecuritySettings)
    failover: FailoverSettings = Field(default_factory=FailoverSettings)
    metrics: MetricsSettings = Field(default_factory=MetricsSettings)
    runner_factory: str = Field(
        default=RUNNER_FACTORY,
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$",
        description="module:attribute called with (model, EngineConfig); replaced in tests",
    )

    @property
    def public_name(self) -> str:
        """The model's name in `/v1/models` and in requests."""
        return self.served_model_name or self.model.rstrip("/").rsplit("/", 1)[-1]
