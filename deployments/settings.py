"""Everything a YAML may say about the application, with ranges and units.

Unknown keys fail and the message lists the valid ones: Ray Serve itself ignores
keys that it doesn't know. Knows nothing of how the settings are used.
"""

from __future__ import annotations

import difflib
import math
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from qwen3_a8w8.config import DECODE_BATCH_SIZES, EngineConfig

RUNNER_FACTORY = "qwen3_a8w8.runner.model_runner:ModelRunner.load"


class StrictSettings(BaseModel):
    """A section in which a key that doesn't exist is an error that lists those that do."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, values: Any) -> Any:
        if isinstance(values, dict):
            for key in values:
                if key not in cls.model_fields:
                    close = difflib.get_close_matches(str(key), cls.model_fields, n=1)
                    hint = f"; did you mean {close[0]!r}?" if close else ""
                    raise ValueError(
                        f"unknown key {key!r} in {cls.__name__}{hint} "
                        f"Valid keys: {', '.join(sorted(cls.model_fields))}"
                    )
        return values


class EngineSettings(StrictSettings):
    """Section `engine`: how each replica runs the model; the fields of `EngineConfig`."""

    device: str = Field(
        default="auto", description="auto, cpu, npu or cuda; auto logs what it chose"
    )
    decode_batch_sizes: tuple[int, ...] = Field(
        default=DECODE_BATCH_SIZES,
        description="compiled decode batch sizes, a subset of [1, 16] with 1",
    )
    block_size: int = Field(
        default=32, description="tokens per KV block, 16 to 256, a multiple of 16"
    )
    num_kv_blocks: int | None = Field(
        default=None,
        description="KV blocks with the scratch block, at least 2; overrides the next two",
    )
    kv_cache_bytes: int | None = Field(default=None, description="bytes for the KV cache")
    kv_memory_fraction: float = Field(
        default=0.8,
        description="share (0 to 1] of the memory free after warm-up that the cache takes",
    )
    kv_cache_dtype: str = Field(
        default="int8", description="int8 (with a scale cache), or bf16 (experimental)"
    )
    max_model_len: int | None = Field(
        default=None,
        description="longest prompt plus output in tokens, which must fit the cache; null: the "
        "checkpoint's limit, or what the cache holds of it",
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
        "are cut by measured speed to keep to it; null: no bound",
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
        default=1, description="plans sent before the former result is in, 0 or 1"
    )
    num_threads: int | None = Field(
        default=None, description="CPU threads; null: the cores that the actor may use"
    )
    packed_cache_dir: str | None = Field(
        default="auto",
        description="directory for packed weights, which make the next start quick and are shared "
        "by the replicas of a node; auto: $QWEN3_A8W8_CACHE or ~/.cache/qwen3-a8w8/packed; null: "
        "none",
    )
    use_mmap: bool = Field(
        default=True,
        description="map packed weights, one copy for all replicas of a node; false: each replica "
        "reads a copy of its own, in huge pages where files can't be kept in such",
    )
    enable: tuple[str, ...] = Field(default=(), description="experimental flags to switch on")

    def to_config(self) -> EngineConfig:
        """The engine's own, range-checked form.

        Raises:
            ConfigError: a value is outside its range.
        """
        return EngineConfig(**self.model_dump())


class ReplicaSettings(StrictSettings):
    """Section `replicas`: how many engines there are and what each one takes of the cluster.

    A replica is two processes in one placement group: the router, which needs little, and
    the actor, which computes.
    """

    num_replicas: int = Field(default=1, ge=1, le=1024, description="engines; one device each")
    router_num_cpus: float = Field(
        default=0.1, ge=0, le=64, description="CPUs that the router's process reserves"
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
        default=2.0, gt=0, le=600, description="seconds between checks"
    )
    health_check_timeout_s: float = Field(
        default=30.0,
        gt=0,
        le=3600,
        description="seconds a check may take before it counts as failed",
    )
    stall_timeout_s: float = Field(
        default=120.0,
        gt=0,
        le=86400,
        description="a replica with work whose step counter stands still this long is restarted; "
        "keep it well above the slowest prefill chunk",
    )
    graceful_shutdown_timeout_s: float = Field(
        default=20.0,
        ge=0,
        le=3600,
        description="seconds that streams get to end when a replica goes",
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
    """Section `failover`: how long a client's stream is carried over dying replicas."""

    max_resumes: int = Field(
        default=10,
        ge=0,
        le=100,
        description="times one request is resumed after losing its replica",
    )
    max_engine_crashes: int = Field(
        default=2,
        ge=0,
        le=100,
        description="times in a row that an engine may die while it computes one request, which "
        "is taken for the cause after one more",
    )
    timeout_s: float = Field(
        default=120.0,
        ge=0,
        le=3600,
        description="seconds without a replica that takes the request before it fails",
    )


class HttpSettings(StrictSettings):
    """Section `http`: the ingress, which is stateless and may have replicas of its own."""

    num_replicas: int = Field(default=1, ge=1, le=1024, description="ingress processes")
    num_cpus: float = Field(default=0.1, ge=0, le=64, description="CPUs that each reserves")
    max_body_bytes: int = Field(
        default=16 * 2**20,
        ge=1024,
        description="longest request body in bytes; longer ones get a 413",
    )
    max_stored_responses: int = Field(
        default=256,
        ge=0,
        le=100_000,
        description="responses kept in memory for previous_response_id of /v1/responses, 64 MiB "
        "at most; 0: none. With several ingress processes none are kept",
    )
    keep_alive_s: float | None = Field(
        default=15.0,
        gt=0,
        le=3600,
        description="seconds after which a stream without news gets a comment, so that proxies "
        "don't take its connection for dead; null: never",
    )
    max_header_bytes: int = Field(
        default=32 * 2**10,
        ge=1024,
        description="longest path and headers together in bytes; longer ones get a 431",
    )


class SecuritySettings(StrictSettings):
    """Section `security`: who may send requests, and how many; see docs/security.md."""

    api_key_file: str | None = Field(
        default=None,
        min_length=1,
        description="file with one API key a line, on the machine of each ingress process; null: "
        "none",
    )
    api_key_env: str | None = Field(
        default=None,
        min_length=1,
        description="environment variable with API keys, separated by commas, which then has to be "
        "set; null: QWEN3_A8W8_API_KEY where that is set",
    )
    max_concurrent_requests_per_key: int | None = Field(
        default=None,
        ge=1,
        description="requests of one key at a time and ingress process; more get a 429; null: any",
    )
    max_requests_per_minute_per_key: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="requests of one key in 60 seconds and ingress process; more get a 429; null: "
        "any",
    )
    cors_allow_origins: tuple[str, ...] = Field(
        default=(),
        description="origins, such as https://chat.example.com, whose pages may send requests "
        "from a browser; '*' for all",
    )

    @property
    def has_key_limits(self) -> bool:
        """Some limit per key is set."""
        limits = (self.max_concurrent_requests_per_key, self.max_requests_per_minute_per_key)
        return any(limit is not None for limit in limits)


class AppSettings(StrictSettings):
    """The application: the `args` of the YAML."""

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
    runner_factory: str = Field(
        default=RUNNER_FACTORY,
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$",
        description="module:attribute called with (model, EngineConfig); replaced in tests",
    )

    @property
    def public_name(self) -> str:
        """The model's name in `/v1/models` and in requests."""
        return self.served_model_name or self.model.rstrip("/").rsplit("/", 1)[-1]
