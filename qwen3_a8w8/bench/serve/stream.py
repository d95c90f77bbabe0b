"""From the bytes of a streamed response, and when they came, to tokens and times.

Pure, and run after the load is over: parsing JSON while requests are in flight would be measured
as latency. What counts as vLLM's benchmark does: time to first token is that of the first chunk
with a token, an inter-token latency is the time between two such chunks (which may have several
tokens each), a request ends with its last chunk with choices. Different from vLLM: a chat stream's
opening chunk, which has a role and no token, is no token; an error in the stream or a stream that
just breaks off is a failed request.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

Read = tuple[float, bytes]
"""Bytes of a response's body, and the second in which they were read."""


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """What a request gave.

    Attributes:
        start_s: when it was sent.
        prompt_len: prompt tokens, as the server counts them if it does.
        ttft_s: seconds from `start_s` to the first token; 0.0 without one.
        itl_s: seconds between chunks with tokens.
        latency_s: seconds from `start_s` to the last chunk; 0.0 if it failed.
        output_len: generated tokens by the server's count; 0: it gave none.
        text: what was generated.
        error: why it failed, or "".
        queue_s: seconds it waited for `max_concurrency` before it was sent.
    """

    start_s: float
    prompt_len: int
    ttft_s: float = 0.0
    itl_s: list[float] = field(default_factory=list)
    latency_s: float = 0.0
    output_len: int = 0
    text: str = ""
    error: str = ""
    queue_s: float = 0.0

    @property
    def has_succeeded(self) -> bool:
        """Whether the response is complete."""
        return not self.error


def events(reads: Iterable[Read]) -> Iterator[tuple[float, str]]:
    """The data of server-sent events, each with the time of the read that completed it.

    Source: HTML Living Standard, section 9.2.6 (server-sent events, interpreting a stream). Fields
    other than `data` and comments are dropped.
    """
    rest = b""
    data: list[bytes] = []
    for time_s, chunk in reads:
        *lines, rest = (rest + chunk).split(b"\n")
        for raw in lines:
            line = raw.removesuffix(b"\r")
            if line:
                name, _, value = line.partition(b":")
                if name == b"data":
                    data.append(value.removeprefix(b" "))
            elif data:
                yield time_s, b"\n".join(data).decode("utf-8", "replace")
                data = []


def read_output(
    start_s: float, reads: Sequence[Read], *, prompt_len: int, queue_s: float = 0.0
) -> RequestOutput:
    """The output of a response with status 200.

    Args:
        start_s: when the request was sent.
        reads: its body.
        prompt_len: prompt tokens as far as known before.
        queue_s: seconds it waited before it was sent.
    """
    token_times: list[float] = []
    end_s = None
    texts: list[str] = []
    usage: dict[str, Any] = {}
    is_over = False
    for time_s, data in events(reads):
        if data == "[DONE]":
            is_over = True
            continue
        try:
            chunk = json.loads(data)
        except ValueError:
            return _failed(start_s, prompt_len, f"no JSON in the stream: {data[:200]!r}", queue_s)
        if "error" in chunk:
            return _failed(start_s, prompt_len, json.dumps(chunk["error"]), queue_s)
        usage = chunk.get("usage") or usage
        if choices := chunk.get("choices"):
            end_s = time_s
            text, has_token = _token_text(choices[0])
            texts.append(text)
            if has_token:
                token_times.append(time_s)
            is_over = is_over or choices[0].get("finish_reason") is not None
    if end_s is None or not is_over:
        what = "has no chunk with choices" if end_s is None else "broke off before its end"
        return _failed(start_s, prompt_len, f"the stream {what}", queue_s)
    first_s = token_times[0] if token_times else end_s
    return RequestOutput(
        start_s=start_s,
        prompt_len=usage.get("prompt_tokens") or prompt_len,
        ttft_s=first_s - start_s,
        itl_s=[later - earlier for earlier, later in itertools.pairwise(token_times)],
        latency_s=end_s - start_s,
        output_len=usage.get("completion_tokens") or 0,
        text="".join(texts),
        queue_s=queue_s,
    )


def _token_text(choice: dict[str, Any]) -> tuple[str, bool]:
    """Text of a chunk's choice, and whether it carries a token.

    A token without text, such as a special one, comes as an empty text; a chunk that only opens a
    message or only ends it carries none.
    """
    if "delta" not in choice:
        text = choice.get("text") or ""
        return text, bool(text) or choice.get("finish_reason") is None
    delta = choice["delta"]
    text = delta.get("content") or ""
    thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
    has_token = bool(text or thought or delta.get("tool_calls"))
    if not has_token and choice.get("finish_reason") is None:
        has_token = "role" not in delta
    return thought + text, has_token


def _failed(start_s: float, prompt_len: int, error: str, queue_s: float) -> RequestOutput:
    return RequestOutput(start_s, prompt_len, error=error, queue_s=queue_s)
