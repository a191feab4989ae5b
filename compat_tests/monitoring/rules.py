"""What deploy/ has for Prometheus and Grafana: its files, and the metrics that they ask for."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
ALERT_TESTS = DEPLOY / "prometheus" / "alerts_test.yml"
OTHER_NAMES = DEPLOY / "prometheus" / "other-names.yml"
DASHBOARD = DEPLOY / "grafana" / "barnabas.json"

_RULE = re.compile(r"- (record|alert): (\S+)\n +expr: (\|\n(?:(?: {10}.*)?\n)+|.*\n?)(?: +for: (\w+))?")
# Metrics of scrapes (`up`) are Prometheus's own.
_NAME = re.compile(r"\b(?:[a-z]+:\w+:\w+|(?:kafka|barnabas|process)_\w+)")


@dataclass(frozen=True, slots=True)
class Rule:
    """`kind`: record or alert. `lasts`: for how long it must be so before an alert fires, "" for no time."""

    kind: str
    name: str
    expression: str
    lasts: str

    @property
    def asked(self) -> frozenset[str]:
        """The metrics that it needs."""
        return names_in(self.expression)


def names_in(expression: str) -> frozenset[str]:
    """The metrics in a PromQL expression."""
    return frozenset(_NAME.findall(re.sub(r'"[^"]*"', "", expression)))


def rules_of(path: Path) -> list[Rule]:
    """The rules of a file, in order."""
    return [
        Rule(kind, name, expression.strip(), lasts)
        for kind, name, expression, lasts in _RULE.findall(path.read_text())
    ]


def queries_of(path: Path) -> list[str]:
    """The PromQL of all panels of a dashboard."""
    return [target["expr"] for panel in json.loads(path.read_text())["panels"] for target in panel["targets"]]
