"""API keys: loading them, identifying the key of a request, and limits per key.

Each ingress process reads the keys once at the start and keeps only their digests, so that
no log, dump or traceback shows a key. Doesn't know about HTTP.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from deployments.settings import SecuritySettings
from qwen3_a8w8.errors import ConfigError, RateLimitError

API_KEY_ENV = "QWEN3_A8W8_API_KEY"
"""Default environment variable with keys, separated by commas."""


class ApiKeys:
    """The digests of the keys that a server accepts."""

    def __init__(self, keys: Iterable[str]) -> None:
        """Validates and hashes the keys.

        Args:
            keys: at least one, of visible ASCII characters; duplicates count once.

        Raises:
            ConfigError: there is no key, or one has characters that a header can't contain.
        """
        distinct = list(dict.fromkeys(keys))
        if not distinct:
            raise ConfigError("the list of API keys is empty; add at least one key")
        for position, key in enumerate(distinct):
            # The key itself isn't shown: messages end up in logs.
            if not key or not all("!" <= char <= "~" for char in key):
                raise ConfigError(
                    f"API key number {position + 1} is empty or has a character other than "
                    "visible ASCII; write one key per line, without spaces"
                )
        self._digests = tuple(_digest(key.encode("ascii")) for key in distinct)

    @classmethod
    def from_settings(
        cls, settings: SecuritySettings, environ: Mapping[str, str] = os.environ
    ) -> ApiKeys | None:
        """Loads the keys from the file and the environment variable in the settings.

        Args:
            settings: names the file and the variable.
            environ: the environment.

        Returns:
            The keys, or None if neither a file nor a variable is set.

        Raises:
            ConfigError: the file or variable can't be read or has no key. A server that should
                require keys must never run without them.
        """
        keys: list[str] = []
        if settings.api_key_file is not None:
            keys += _read(Path(settings.api_key_file))
        name = settings.api_key_env or API_KEY_ENV
        value = environ.get(name)
        if value is not None:
            if not value.strip():
                raise ConfigError(
                    f"the environment variable {name} is empty; set a key or unset it"
                )
            keys += [key.strip() for key in value.split(",")]
        elif settings.api_key_env is not None:
            raise ConfigError(
                f"security.api_key_env is {name}, which isn't set in the ingress process; set "
                "it, e.g. in the deployment's runtime_env"
            )
        return cls(keys) if keys else None

    def identify(self, key: bytes) -> int | None:
        """Index of the key, or None; takes constant time."""
        digest = _digest(key)
        found: int | None = None
        for number, valid in enumerate(self._digests):
            if hmac.compare_digest(digest, valid):
                found = number
        return found


def _read(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it isn't ASCII text"
        raise ConfigError(f"security.api_key_file {path}: can't be read: {reason}") from None
    keys = [line.strip() for line in lines]
    keys = [key for key in keys if key and not key.startswith("#")]
    if not keys:
        raise ConfigError(f"security.api_key_file {path}: has no key; write one per line")
    return keys


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


WINDOW_S = 60.0
CONCURRENCY_RETRY_S = 1.0
"""Retry-After of the concurrency limit; the real time isn't known, clients wait a second anyway."""


class KeyLimits:
    """Counts each key's requests: running ones, and those started in the last minute.

    Belongs to one event loop. A rejected request counts for neither limit.
    """

    def __init__(
        self,
        max_concurrent: int | None,
        max_per_minute: int | None,
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Creates the counters.

        Args:
            max_concurrent: running requests per key, streams until their end; None: any.
            max_per_minute: requests per key started within 60 seconds; None: any.
            clock_s: monotonic clock in seconds.
        """
        self._max_concurrent = max_concurrent
        self._max_per_minute = max_per_minute
        self._clock_s = clock_s
        self._num_running: dict[int, int] = {}
        self._starts_s: dict[int, deque[float]] = {}

    def start(self, key: int) -> None:
        """Counts a request; call `end` when it is over, successful or not.

        Raises:
            RateLimitError: the key has reached a limit.
        """
        num_running = self._num_running.get(key, 0)
        if self._max_concurrent is not None and num_running >= self._max_concurrent:
            raise RateLimitError(
                f"this API key has {num_running} running requests, the limit is "
                f"{self._max_concurrent}; wait until one ends",
                retry_after_s=CONCURRENCY_RETRY_S,
            )
        self._count_start(key)
        self._num_running[key] = num_running + 1

    def end(self, key: int) -> None:
        """Counts the end of a started request."""
        self._num_running[key] -= 1

    def _count_start(self, key: int) -> None:
        if self._max_per_minute is None:
            return
        now_s = self._clock_s()
        starts_s = self._starts_s.setdefault(key, deque())
        while starts_s and starts_s[0] <= now_s - WINDOW_S:
            starts_s.popleft()
        if len(starts_s) >= self._max_per_minute:
            wait_s = starts_s[0] + WINDOW_S - now_s
            raise RateLimitError(
                f"this API key has sent {len(starts_s)} requests in the last {WINDOW_S:g} s, the "
                f"limit is {self._max_per_minute}; send the next one in {wait_s:.0f} s",
                retry_after_s=wait_s,
            )
        starts_s.append(now_s)
