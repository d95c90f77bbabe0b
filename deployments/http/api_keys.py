"""API keys: where they come from, whether a request has one, and how much one may ask.

Keys are read once, by each ingress process as it starts; only their digests are kept, so that
no log, dump or traceback shows one. Knows nothing of HTTP.
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
"""Environment variable that holds keys, separated by commas, where no other one is named."""


class ApiKeys:
    """The keys that open a server, by their digests."""

    def __init__(self, keys: Iterable[str]) -> None:
        """Takes the keys.

        Args:
            keys: visible ASCII characters each, at least one key; repetitions count once.

        Raises:
            ConfigError: there is none, or one has characters that no header can carry.
        """
        distinct = list(dict.fromkeys(keys))
        if not distinct:
            raise ConfigError("the list of API keys is empty; write at least one key")
        for position, key in enumerate(distinct):
            # The key itself isn't shown: messages end up in logs.
            if not key or not all("!" <= char <= "~" for char in key):
                raise ConfigError(
                    f"API key number {position + 1} is empty or has a character other than "
                    "visible ASCII; write one key a line, without spaces"
                )
        self._digests = tuple(_digest(key.encode("ascii")) for key in distinct)

    @classmethod
    def from_settings(
        cls, settings: SecuritySettings, environ: Mapping[str, str] = os.environ
    ) -> ApiKeys | None:
        """The keys that the settings name, those of file and environment together.

        Args:
            settings: where keys are.
            environ: the environment.

        Returns:
            The keys, or None where neither a file nor a variable is given.

        Raises:
            ConfigError: what is given can't be read or has no key. A server that is meant to be
                closed is never left open.
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
                f"security.api_key_env names {name}, which isn't set where the ingress runs; set "
                "it there, e.g. in the deployment's runtime_env"
            )
        return cls(keys) if keys else None

    def identify(self, key: bytes) -> int | None:
        """Which of the keys this is, or None; takes equally long whichever it is."""
        digest = _digest(key)
        found: int | None = None
        for number, known in enumerate(self._digests):
            if hmac.compare_digest(digest, known):
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
        raise ConfigError(f"security.api_key_file {path}: has no key; write one a line")
    return keys


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


WINDOW_S = 60.0
CONCURRENCY_RETRY_S = 1.0
"""When a place is free again isn't known; a second is what clients wait anyway."""


class KeyLimits:
    """Counts each key's requests: those under way, and those begun in the last minute.

    It belongs to one event loop. A refused request counts for neither limit.
    """

    def __init__(
        self,
        max_concurrent: int | None,
        max_per_minute: int | None,
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Makes the counters.

        Args:
            max_concurrent: requests of one key at a time, streams until their end; None: any.
            max_per_minute: requests of one key begun within 60 seconds; None: any.
            clock_s: seconds that only grow.
        """
        self._max_concurrent = max_concurrent
        self._max_per_minute = max_per_minute
        self._clock_s = clock_s
        self._num_running: dict[int, int] = {}
        self._begun_s: dict[int, deque[float]] = {}

    def begin(self, key: int) -> None:
        """Counts a request; `end` has to follow once it is over, however that was.

        Raises:
            RateLimitError: the key has reached a limit.
        """
        num_running = self._num_running.get(key, 0)
        if self._max_concurrent is not None and num_running >= self._max_concurrent:
            raise RateLimitError(
                f"this API key has {num_running} requests under way, the limit is "
                f"{self._max_concurrent}; wait until one has ended",
                retry_after_s=CONCURRENCY_RETRY_S,
            )
        self._count_begun(key)
        self._num_running[key] = num_running + 1

    def end(self, key: int) -> None:
        """A request that was begun is over."""
        self._num_running[key] -= 1

    def _count_begun(self, key: int) -> None:
        if self._max_per_minute is None:
            return
        now_s = self._clock_s()
        begun_s = self._begun_s.setdefault(key, deque())
        while begun_s and begun_s[0] <= now_s - WINDOW_S:
            begun_s.popleft()
        if len(begun_s) >= self._max_per_minute:
            wait_s = begun_s[0] + WINDOW_S - now_s
            raise RateLimitError(
                f"this API key has begun {len(begun_s)} requests in the last {WINDOW_S:g} s, the "
                f"limit is {self._max_per_minute}; send the next in {wait_s:.0f} s",
                retry_after_s=wait_s,
            )
        begun_s.append(now_s)
