"""Lists the Python files that one streamed chat request runs through, in every process.

    python tools/request_files.py

Serves the demo model on a local Ray, warms it up, and records a file when one of its functions is
called while one more request is served: what a newcomer has to open to follow a request from the
socket to the kernels and back. Threads that C++ starts in Ray's processes aren't seen.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from deployments.local.ports import free_port

ROOT = Path(__file__).resolve().parents[1]

# Python imports this by itself at the start of every process, Ray's among them. The switch is
# memory that all processes share.
HOOK = """
import mmap, os, sys, threading
_directory, _root = os.environ["REQUEST_FILES_DIRECTORY"], os.environ["REQUEST_FILES_ROOT"]
with open(os.path.join(_directory, "switch"), "r+b") as _file:
    _switch = mmap.mmap(_file.fileno(), 1)
_seen = set()
def _hook(frame, event, arg):
    if event == "call" and _switch[0] == ord("1"):
        name = frame.f_code.co_filename
        if name.startswith(_root) and frame.f_code.co_name != "<module>" and name not in _seen:
            _seen.add(name)
            with open(os.path.join(_directory, f"{os.getpid()}.files"), "a") as out:
                out.write(name + "\\n")
threading.setprofile(_hook)
sys.setprofile(_hook)
"""


def main() -> None:
    """Prints the files with their lines."""
    with tempfile.TemporaryDirectory() as name:
        files = recorded_files(Path(name))
    total = 0
    for file in files:
        num_lines = len(file.read_text(encoding="utf-8").splitlines())
        total += num_lines
        print(f"{num_lines:5} {file.relative_to(ROOT)}")
    print(f"{len(files)} files, {total} lines")


def recorded_files(directory: Path) -> list[Path]:
    """The files of one request, sorted; `directory` is empty."""
    (directory / "sitecustomize.py").write_text(HOOK, encoding="utf-8")
    switch = directory / "switch"
    switch.write_bytes(b"0")
    packages = [ROOT / "deployments", ROOT / "qwen3_a8w8"]
    port = free_port()
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(directory), str(ROOT)]),
        "REQUEST_FILES_DIRECTORY": str(directory),
        "REQUEST_FILES_ROOT": str(ROOT) + os.sep,
    }
    command = [sys.executable, "-m", "qwen3_a8w8.cli.main", "serve", "--port", str(port)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            if not any("Serving at" in line for line in server.stdout):
                sys.exit("the server didn't start; its messages are above")
            for _ in range(2):  # what happens once has happened then
                chat(port)
            with switch.open("r+b", buffering=0) as file:
                file.write(b"1")
                chat(port)
                file.seek(0)
                file.write(b"0")
        finally:
            server.terminate()
    names = {
        Path(line) for path in directory.glob("*.files") for line in path.read_text().splitlines()
    }
    return sorted(file for file in names if any(package in file.parents for package in packages))


def chat(port: int) -> None:
    """One streamed chat completion."""
    body = {
        "model": "demo",
        "stream": True,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        if b"[DONE]" not in response.read():
            sys.exit("the stream broke off; the server's messages are above")


if __name__ == "__main__":
    main()
