"""HAProxy as the launcher runs it, before servers that can be killed; without Ray."""

import contextlib
import http.server
import socket
import struct
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from deployments.local.haproxy import BINARY_ENV, haproxy_environment
from deployments.local.ports import free_port

DEADLINE_S = 120.0

# What Ray writes for one application, as far as it matters here.
CONFIG = """\
global
    log 127.0.0.1:514 local0 info
    stats socket {directory}/s mode 666 level admin expose-fd listeners
    maxconn {RAY_SERVE_HAPROXY_MAXCONN}
    nbthread 1
    tune.bufsize {RAY_SERVE_HAPROXY_TUNE_BUFSIZE}
defaults
    mode http
    timeout connect 5s
    timeout client 3600s
    log global
    option abortonclose
    option splice-request
    option splice-response
    option redispatch 1
    retry-on {RAY_SERVE_HAPROXY_RETRY_ON}
    retries {RAY_SERVE_HAPROXY_RETRIES}
    option http-no-delay
    option idle-close-on-response
    errorfile 502 {directory}/500.http
    errorfile 503 {directory}/500.http
    errorfile 504 {directory}/500.http
    balance leastconn
frontend prometheus
    bind :9101
frontend http_frontend
    bind 127.0.0.1:8000
    use_backend http-app if {{ path_beg / }}
    default_backend default_backend
backend default_backend
    http-request return status 404 content-type text/plain lf-string "Path not found."
backend http-app
    http-reuse always
    option httpchk GET /-/healthz
    http-check expect status 200
    default-server inter 5s fastinter 250ms downinter 250ms fall 2 rise 2
    server ingress 127.0.0.1:{ingress} check observe layer4 error-limit 1 on-error mark-down
    server fallback 127.0.0.1:{fallback} check backup
listen stats
  bind *:8404
"""


class Server:
    """Answers with its name, at `/hold` only once released; at `/fails` fails as Serve does."""

    def __init__(self, name):
        self._connections = []
        self._release = threading.Event()
        self._lock = threading.Lock()
        self.num_held = 0

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(handler):
                body = name.encode()
                if handler.path == "/hold":
                    with self._lock:
                        self.num_held += 1
                    assert self._release.wait(DEADLINE_S)
                handler.send_response(500 if handler.path == "/fails" else 200)
                handler.send_header("Content-Type", "text/plain; charset=utf-8")
                handler.send_header("Content-Length", str(len(body)))
                handler.end_headers()
                handler.wfile.write(body)

            def do_POST(handler):
                handler.rfile.read(int(handler.headers["Content-Length"]))
                handler.do_GET()

            def log_message(handler, *args):
                pass

        class Listener(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def process_request(listener, request, client_address):
                self._connections.append(request)
                super().process_request(request, client_address)

            def handle_error(listener, request, client_address):
                pass  # its connection has been killed

        self._listener = Listener(("127.0.0.1", 0), Handler)
        self.port = self._listener.server_address[1]
        threading.Thread(target=self._listener.serve_forever, args=(0.01,), daemon=True).start()

    def release(self):
        """Lets the requests that are held have their answers."""
        self._release.set()

    def kill(self):
        """Ends like a process that is killed: all connections at once, and nobody listens."""
        self._listener.shutdown()
        self._listener.server_close()
        for connection in self._connections:
            with contextlib.suppress(OSError):  # closed already
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.shutdown(socket.SHUT_RDWR)
        self._release.set()


@dataclass
class Rig:
    """HAProxy while it runs."""

    url: str
    environment: dict
    ingress: Server
    fallback: Server
    processes: list = field(default_factory=list)

    def client(self):
        return httpx.Client(base_url=self.url, timeout=DEADLINE_S)

    @property
    def config(self):
        return Path(self.environment["RAY_SERVE_HAPROXY_CONFIG_FILE_LOC"])

    @property
    def log(self):
        return self.config.with_suffix(".log")

    def start(self, *arguments, prefix=()):
        """Starts a HAProxy and waits until it has the socket for commands."""
        command = [*prefix, self.environment[BINARY_ENV], "-db", "-f", str(self.config)]
        with self.log.open("ab") as stderr:
            process = subprocess.Popen([*command, *arguments], stderr=stderr)
        self.processes.append(process)
        wait_until(lambda: process.poll() is not None or self.running_pid() == process.pid, "start")
        assert process.poll() is None, self.log.read_text()

    def reload(self):
        """Another HAProxy takes over, as when the ingress changes; the old one ends its work."""
        self.start("-sf", str(self.processes[-1].pid), "-x", str(self.config.parent / "s"))

    def running_pid(self):
        """The HAProxy that takes commands."""
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(str(self.config.parent / "s"))
            except OSError:
                return None
            connection.sendall(b"show info\n")
            (line,) = [x for x in connection.makefile() if x.startswith("Pid:")]
        return int(line.split()[1])


@contextlib.contextmanager
def running_haproxy(*, prefix=()):
    """HAProxy before an ingress and a fallback, started by a command with that prefix."""
    port = free_port()
    ingress, fallback = Server("ingress"), Server("fallback")
    fallback.release()
    with haproxy_environment("127.0.0.1", port, max_header_bytes=2**15) as environment:
        rig = Rig(f"http://127.0.0.1:{port}", environment, ingress, fallback)
        rig.config.write_text(
            CONFIG.format(
                directory=rig.config.parent,
                ingress=ingress.port,
                fallback=fallback.port,
                **environment,
            )
        )
        try:
            rig.start(prefix=prefix)
            yield rig
        finally:
            for process in rig.processes:
                process.kill()
                process.wait()
            for server in (ingress, fallback):
                server.kill()


def wait_until(is_true, what):
    """Asks until the answer is yes."""
    deadline = time.monotonic() + DEADLINE_S
    while not is_true():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what}"
        time.sleep(0.01)
