"""Rules and dashboards of deploy/: well-formed, and made for people."""

import itertools
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.monitoring import ROOT, RULES, alert_rules, all_expressions, dashboards, panels

from dovetail.kafka.codec.error_codes import ANSWERED

OPERATIONS = ROOT / "docs" / "operations.md"
ALERTS = [rule for rule in alert_rules() if "alert" in rule]


@pytest.mark.parametrize("expression", all_expressions(), ids=lambda one: one.place)
def test_every_expression_is_one(expression: Any) -> None:
    """U6: parsed as Prometheus parses it."""
    expression.parsed()


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_happened_and_what_to_do(rule: dict[str, Any]) -> None:
    """U6, U7: a summary, a description, how bad it is, and a paragraph to read on."""
    assert rule["alert"].startswith("Dovetail")
    assert rule["labels"]["severity"] in {"warning", "critical"}
    notes = rule["annotations"]
    assert notes["description"].endswith(".")
    assert not notes["summary"].endswith(".")
    document, _, anchor = notes["runbook"].partition("#")
    assert ROOT / document == OPERATIONS
    assert f"\n### {rule['alert']}\n" in OPERATIONS.read_text()
    assert anchor == rule["alert"].lower()
    for name in re.findall(r"\$labels\.(\w+)", notes["summary"] + notes["description"]):
        grouped = re.search(r"\bby \(([^)]*)\)", rule["expr"])
        assert grouped is None or name in grouped.group(1), f"{name} is not in the result"


def test_alerts_and_their_paragraphs_are_the_same() -> None:
    """U6: no paragraph about an alert that is gone, no alert twice."""
    names = [rule["alert"] for rule in ALERTS]
    assert len(names) == len(set(names))
    assert re.findall(r"^### (Dovetail\w+)$", OPERATIONS.read_text(), re.MULTILINE) == names


def test_error_codes_in_rules_are_those_that_brokers_answer() -> None:
    """U6: an alert about a code that nobody answers would never fire."""
    codes = {code.name for code in ANSWERED}
    (rule,) = (rule for rule in ALERTS if rule["alert"] == "DovetailWritesFail")
    (listed,) = re.findall(r'code=~"([^"]*)"', rule["expr"])
    assert set(listed.split("|")) <= codes


def test_prometheus_itself_takes_the_rules_and_they_fire() -> None:
    """U6: `promtool` checks the files and runs the alerts on made-up series."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool (Debian package prometheus)")
    for arguments in (["check", "config", "prometheus.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run(
            [promtool, *arguments], cwd=RULES.parent, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    tested = yaml.safe_load((RULES.parent / "alerts_test.yml").read_text())["tests"]
    named = {one["alertname"] for test in tested for one in test["alert_rule_test"]}
    assert named <= {rule["alert"] for rule in ALERTS}


@pytest.mark.parametrize("name", dashboards())
def test_a_dashboard_is_whole(name: str) -> None:
    """U6: panels with titles, descriptions and units, side by side and not on top of each other."""
    dashboard = dashboards()[name]
    listed = list(panels(dashboard))
    assert len({panel["id"] for panel in listed}) == len(listed)
    places: set[tuple[int, int]] = set()
    for panel in listed:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = set(
            itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"]))
        )
        assert not cells & places, panel["title"]
        places |= cells
        if panel["type"] == "row":
            continue
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])
    text = (Path(ROOT) / "deploy" / "grafana" / f"{name}.json").read_text()
    for variable in dashboard["templating"]["list"]:
        assert re.search(rf"\$\{{?{variable['name']}\b", text), variable["name"]


def test_dashboards_are_told_apart() -> None:
    """U6: each its own address and title; overview, log, timelines, and the work around them."""
    found = dashboards()
    assert set(found) == {"overview", "log", "timelines", "work"}
    assert len({one["uid"] for one in found.values()}) == len(found)
    assert len({one["title"] for one in found.values()}) == len(found)
