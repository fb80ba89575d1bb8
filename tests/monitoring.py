"""The rules and dashboards of deploy/, parsed: what they ask Prometheus for."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import promql_parser
import yaml

ROOT = Path(__file__).parent.parent
RULES = ROOT / "deploy" / "prometheus" / "alerts.yml"
DASHBOARDS = ROOT / "deploy" / "grafana"

#: What Grafana puts in place of its own variables; the parser knows only Prometheus.
_VARIABLES = {"$__rate_interval": "5m", "$__interval": "1m", "$__range": "1h"}


@dataclass(frozen=True, slots=True)
class Expression:
    """One expression, and where it stands."""

    place: str
    text: str

    def parsed(self) -> Any:
        """Raises `ValueError` if it is none."""
        text = self.text
        for name, value in _VARIABLES.items():
            text = text.replace(name, value)
        return promql_parser.parse(text)

    def selectors(self) -> list[tuple[str, set[str]]]:
        """Each series that is asked for, with the labels that are matched."""
        return [
            (node.name, {matcher.name for matcher in node.matchers.matchers})
            for node in _nodes(self.parsed())
            if isinstance(node, promql_parser.VectorSelector)
        ]

    def equalities(self) -> list[tuple[str, str, str]]:
        """Series, label and value of each matcher that names values: `=`, or a list by `=~`."""
        found = []
        for node in _nodes(self.parsed()):
            if isinstance(node, promql_parser.VectorSelector):
                for matcher in node.matchers.matchers:
                    kind = str(matcher.op)
                    if kind.endswith("Equal") and not kind.endswith("NotEqual"):
                        found.append((node.name, matcher.name, matcher.value))
        return found

    def grouped(self) -> set[str]:
        """Labels that results are grouped or joined by."""
        named: set[str] = set()
        pattern = r"\b(?:by|on|group_left|group_right)\s*\(([^)]*)\)"
        for inside in re.findall(pattern, self.text):
            named |= {label.strip() for label in inside.split(",") if label.strip()}
        return named


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for name in ("lhs", "rhs", "expr", "vector_selector"):
        inner = getattr(node, name, None)
        if inner is not None:
            yield from _nodes(inner)
    for inner in getattr(node, "args", None) or ():
        yield from _nodes(inner)


@cache
def alert_rules() -> list[dict[str, Any]]:
    """All rules, alerts and recordings."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


@cache
def dashboards() -> dict[str, dict[str, Any]]:
    """The dashboards by the names of their files."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(DASHBOARDS.glob("*.json"))}


def panels(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All panels, also those inside rows."""
    for panel in dashboard["panels"]:
        yield panel
        yield from panels({"panels": panel.get("panels", [])})


@cache
def all_expressions() -> list[Expression]:
    """Every expression of rules and dashboards."""
    found = [
        Expression(f"rule {rule.get('alert') or rule['record']}", rule["expr"])
        for rule in alert_rules()
    ]
    for name, dashboard in dashboards().items():
        for panel in panels(dashboard):
            found += [
                Expression(f"{name}: {panel['title']} {target['refId']}", target["expr"])
                for target in panel.get("targets", ())
            ]
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "query":
                inside = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["definition"])
                assert inside, variable["definition"]
                label = inside.group(2)
                text = f"count by ({label}) ({inside.group(1)})"
                found.append(Expression(f"{name}: ${variable['name']}", text))
    return found
