"""The dashboard as a file, and the alerts on given series; tests/serve runs both for real."""

import copy
import itertools
import json
import re
import runpy
import subprocess

import pytest
import yaml

from tests.support.prometheus import DEADLINE_S, PROMTOOL, needs_prometheus


@pytest.fixture
def configs(request):
    return request.config.rootpath / "cluster_configs"


@pytest.fixture
def dashboard(configs):
    return json.loads((configs / "grafana" / "dashboard.json").read_text())


def test_dashboard_is_that_of_its_program(request):
    program = runpy.run_path(str(request.config.rootpath / "tools" / "grafana_dashboard.py"))
    assert program["PATH"].read_text() == program["text"]()


def lost(ours, theirs, path=""):
    """Paths of what one has and the other doesn't, or has otherwise."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key, value in ours.items():
            yield from lost(value, theirs.get(key, KeyError), f"{path}/{key}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for index, pair in enumerate(zip(ours, theirs, strict=True)):
            yield from lost(*pair, f"{path}/{index}")
    elif ours != theirs:
        yield path


def test_dashboard_is_one_in_grafanas_own_model(dashboard):
    """What Grafana's model of a dashboard, its panels and queries doesn't know, it drops."""
    sdk = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins

    register_default_plugins()

    def read_by_grafana(values):
        return json.loads(JSONEncoder().encode(sdk.Dashboard.from_json(copy.deepcopy(values))))

    assert list(lost(dashboard, read_by_grafana(dashboard))) == []
    # It would be noticed, in every part of it.
    wrong = copy.deepcopy(dashboard)
    number, graph = wrong["panels"][1], wrong["panels"][8]
    wrong["refreshes"] = "10s"
    number["options"]["colourMode"] = "value"
    graph["fieldConfig"]["defaults"]["custom"]["lineWidht"] = 1
    graph["targets"][0]["legend"] = "x"
    graph["gridPos"]["width"] = 8
    assert set(lost(wrong, read_by_grafana(wrong))) == {
        "/refreshes",
        "/panels/1/options/colourMode",
        "/panels/8/fieldConfig/defaults/custom/lineWidht",
        "/panels/8/targets/0/legend",
        "/panels/8/gridPos/width",
    }


def test_panels_have_places_of_their_own_on_the_grid(dashboard):
    panels = dashboard["panels"]
    assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
    places = [panel["gridPos"] for panel in panels]
    assert all(p["x"] >= 0 and p["x"] + p["w"] <= 24 and p["h"] >= 1 for p in places)
    for one, other in itertools.combinations(places, 2):
        is_beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        is_above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert is_beside or is_above, (one, other)


# Ids of units in Grafana (packages/grafana-data/src/valueFormats/categories.ts).
UNITS = {"short", "reqps", "ops", "percentunit", "s", "bytes"}


def test_panels_have_units_queries_and_the_chosen_data_source(dashboard):
    variables = {each["name"]: each for each in dashboard["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    source = {"type": "prometheus", "uid": "${datasource}"}
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert len(panels) > 20
    for panel in panels:
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        references = [target["refId"] for target in panel["targets"]]
        assert references == sorted(set(references)) != []
        for target in panel["targets"]:
            assert target["datasource"] == panel["datasource"] == source
            used = set(re.findall(r"\$(\w+)", target["expr"]))
            assert used <= {*variables, "__rate_interval"}
            assert "job" in used


@needs_prometheus
def test_alerts_fire_when_they_should_and_not_otherwise(request, configs):
    path = request.config.rootpath / "tests" / "sites" / "alerts_test.yml"
    for command in (
        ["check", "config", str(configs / "prometheus.yml")],
        ["test", "rules", str(path)],
    ):
        done = subprocess.run(
            [PROMTOOL, *command], capture_output=True, text=True, timeout=DEADLINE_S
        )
        assert done.returncode == 0, done.stdout + done.stderr
    # promtool ran a firing and a silent case of each.
    (group,) = yaml.safe_load((configs / "alerts.yml").read_text())["groups"]
    cases = {
        (case["alertname"], bool(case["exp_alerts"]))
        for test in yaml.safe_load(path.read_text())["tests"]
        for case in test["alert_rule_test"]
    }
    names = [rule["alert"] for rule in group["rules"]]
    assert cases == set(itertools.product(names, (True, False)))


def test_every_alert_has_its_section_in_the_operators_reference(request, configs):
    page = (request.config.rootpath / "docs" / "operations.md").read_text()
    headings = {line.lstrip("# ").lower() for line in page.splitlines() if line.startswith("#")}
    (group,) = yaml.safe_load((configs / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]:
        assert rule["labels"]["severity"] in ("critical", "warning")
        file, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert file == "docs/operations.md"
        assert anchor == rule["alert"].lower()
        assert anchor in headings
