"""A minimal client: raw sockets, frames counted as bytes.

Runs as a separate process, so that it uses no time of the server's core. Prints one JSON
object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from typing import Any


async def stream_once(host: str, port: int, num_tokens: int) -> dict[str, Any]:
    """One streamed chat completion: times of its first and last token, frames, reads."""
    body = json.dumps(
        {
            "messages": [{"role": "user", "content": "Tell me about the sea."}],
            "max_tokens": num_tokens,
            "seed": 1,
            "ignore_eos": True,
            "stream": True,
        }
    ).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\n"
        f"Host: {host}:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    begin_s = time.perf_counter()
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(head.encode() + body)
        received = bytearray()
        first_s = None
        num_reads = 0
        while data := await reader.read(65536):
            received += data
            num_reads += 1
            # The first frame has the role only; the first with text is the first token.
            if first_s is None and (b'"content":"' in data.replace(b'"content":""', b"")):
                first_s = time.perf_counter()
        end_s = time.perf_counter()
    finally:
        writer.close()
    if not received.startswith(b"HTTP/1.1 200") or b"data: [DONE]" not in received:
        raise SystemExit(f"no whole stream: {bytes(received[:500])!r}")
    num_frames = received.count(b'"content":"') - received.count(b'"content":""')
    return {
        "ttft_s": (first_s or end_s) - begin_s,
        "e2e_s": end_s - begin_s,
        "num_frames": num_frames,
        "num_reads": num_reads,
    }


async def run(host: str, port: int, concurrency: int, num_tokens: int, rounds: int) -> dict:
    """`rounds` waves of `concurrency` streams, the first wave not counted."""
    await asyncio.gather(*(stream_once(host, port, num_tokens) for _ in range(concurrency)))
    results: list[dict[str, Any]] = []
    seconds = []
    for _ in range(rounds):
        begin_s = time.perf_counter()
        results += await asyncio.gather(
            *(stream_once(host, port, num_tokens) for _ in range(concurrency))
        )
        seconds.append(time.perf_counter() - begin_s)
    num_frames = sum(result["num_frames"] for result in results)
    return {
        "tokens_per_s": concurrency * num_tokens / statistics.median(seconds),
        "ttft_s": statistics.median(result["ttft_s"] for result in results),
        "tokens_per_frame": len(results) * num_tokens / num_frames,
        "frames_per_read": num_frames / sum(result["num_reads"] for result in results),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--num-tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    figures = asyncio.run(run(args.host, args.port, args.concurrency, args.num_tokens, args.rounds))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
