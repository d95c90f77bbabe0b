"""A client that sends many requests at once: raw sockets, each answer timed.

Runs as a separate process, so that the server's processes only share the cores with it. Prints
one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import Any

DEADLINE_S = 300.0


async def complete(port: int, index: int, num_tokens: int) -> dict[str, Any]:
    """One completion: its status, seconds until all of its response is there, its Retry-After."""
    body = json.dumps(
        {"prompt": f"b {index}", "max_tokens": num_tokens, "ignore_eos": True, "seed": index}
    ).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\n"
        f"Host: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    begin_s = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head.encode() + body)
        received = await reader.read(-1)
    finally:
        writer.close()
    seconds = time.perf_counter() - begin_s
    lines = received.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:])
    return {
        "status": int(lines[0].split()[1]) if len(lines[0].split()) > 1 else 0,
        "seconds": seconds,
        "retry_after": headers.get("retry-after"),
    }


async def burst(port: int, num_requests: int, num_tokens: int) -> list[dict[str, Any]]:
    """All requests at once; their answers in the order of the requests."""
    answers = (complete(port, index, num_tokens) for index in range(num_requests))
    return await asyncio.wait_for(asyncio.gather(*answers), DEADLINE_S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--num-requests", type=int, required=True)
    parser.add_argument("--num-tokens", type=int, required=True)
    args = parser.parse_args()
    print(json.dumps(asyncio.run(burst(args.port, args.num_requests, args.num_tokens))))


if __name__ == "__main__":
    main()
