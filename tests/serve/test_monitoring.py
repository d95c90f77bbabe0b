"""Every query of the dashboard and of the alerts, on what a Prometheus scrapes from a server."""

import asyncio
import json
import math
import re

import pytest
import yaml

from tests.support.prometheus import needs_prometheus, query, running_prometheus

pytestmark = [pytest.mark.serve, needs_prometheus]

# What is 0, or 0 / 0, on a server that answers everything at once.
IDLE = {
    "Failed",
    "Waiting",
    "KV cache",
    "Sequences",
    "KV cache in use",
    "In the queue",
    "Prefix cache hits",
    "Accepted draft tokens",
    "Preemptions, failed steps, failovers",
    # The fake runner never waits.
    "waiting for the host {{replica}}",
}
BODY = {"model": "tiny", "prompt": "the quick brown fox", "max_tokens": 40, "ignore_eos": True}


@pytest.fixture
def configs(request):
    return request.config.rootpath / "cluster_configs"


def scraping(configs, url):
    """The shipped configuration for this server, every second."""
    config = yaml.safe_load((configs / "prometheus.yml").read_text())
    assert config["rule_files"] == ["alerts.yml"]
    (scrape,) = config["scrape_configs"]
    scrape["static_configs"] = [{"targets": [url.removeprefix("http://")]}]
    config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s"}
    config["rule_files"] = [str(configs / "alerts.yml")]
    return config


@pytest.fixture
def traffic(application):
    """Sends requests of several kinds, some of them wrong."""

    def send(num_rounds=1):
        with application.http() as http:
            for number in range(num_rounds):
                body = {**BODY, "n": 4, "seed": number}
                http.post("/v1/completions", json=body).raise_for_status()
                with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as one:
                    one.read()
                assert http.post("/v1/completions", json={"prompt": 7}).status_code == 400

    return send


async def test_every_query_of_the_dashboard_has_values(application, configs, traffic, tmp_path):
    dashboard = json.loads((configs / "grafana" / "dashboard.json").read_text())
    # All series are there before the first scrape: a rate needs two values of each.
    await asyncio.to_thread(traffic)
    async with running_prometheus(scraping(configs, application.url), tmp_path) as client:
        assert await query(client, 'up{job="qwen3-a8w8"}') == [1.0]
        labels = {}
        for variable in dashboard["templating"]["list"][1:]:
            selector, label = re.fullmatch(
                r"label_values\((.+), (\w+)\)", variable["query"]["query"]
            ).groups()
            answer = await client.get(
                f"/label/{label}/values", params={"match[]": selector.replace("$job", ".*")}
            )
            labels[variable["name"]] = answer.json()["data"]
        assert labels["job"] == ["qwen3-a8w8"]
        reports = await asyncio.to_thread(application.reports)
        assert labels["replica"] == sorted(report.replica_id for report in reports)

        await asyncio.to_thread(traffic, 5)
        for panel in dashboard["panels"]:
            for target in panel.get("targets", ()):
                is_idle = bool(IDLE & {panel["title"], target["legendFormat"]})
                text = (
                    target["expr"]
                    .replace("$__rate_interval", "1h")
                    .replace("$job", "qwen3-a8w8")
                    .replace("$replica", "|".join(labels["replica"]))
                )

                def has_come(values, is_idle=is_idle):
                    return values and (is_idle or any(v > 0 and math.isfinite(v) for v in values))

                await query(client, text, has_come)


async def test_every_alert_is_evaluated_on_metrics_that_exist(
    application, configs, traffic, tmp_path
):
    await asyncio.to_thread(traffic)
    async with running_prometheus(scraping(configs, application.url), tmp_path) as client:
        await query(client, "qwen3_a8w8_build_info")
        groups = (await client.get("/rules")).json()["data"]["groups"]
        names = {rule["name"] for group in groups for rule in group["rules"]}
        shipped = yaml.safe_load((configs / "alerts.yml").read_text())["groups"]
        rules = [rule for group in shipped for rule in group["rules"]]
        assert names == {rule["alert"] for rule in rules}
        for rule in rules:
            found = re.findall(r"\b(up|qwen3_a8w8_\w+)", rule["expr"])
            assert found, rule["alert"]
            for metric in found:
                await query(client, metric)
            # Nothing is wrong with this server. `query` fails where it can't be evaluated.
            assert await query(client, rule["expr"], lambda values: True) == [], rule["alert"]
