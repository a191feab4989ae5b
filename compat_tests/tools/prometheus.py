"""promtool reads our page, our rules with their unit tests, and the queries of our dashboard."""

from __future__ import annotations

import json
from pathlib import Path

from compat_tests.monitoring.busy import SETTINGS, busy_page
from compat_tests.monitoring.rules import ALERT_TESTS, ALERTS, DASHBOARD, OTHER_NAMES, queries_of, rules_of
from compat_tests.tools import promtool
from compat_tests.tools.tool import Tool, Trial

_VARIABLES = {"$__rate_interval": "5m", "$job": "barnabas", "$instance": "node"}


def check(trial: Trial) -> str:
    """All of it; returns what there was."""
    with trial.broker(SETTINGS) as broker:
        page = busy_page(broker)
    promtool.check_page(page)
    promtool.run(("check", "rules", ALERTS, OTHER_NAMES))
    promtool.run(("test", "rules", ALERT_TESTS))
    queries = queries_of(DASHBOARD)
    promtool.run(("check", "rules", _as_rules(queries, trial.directory)))
    rules = rules_of(ALERTS) + rules_of(OTHER_NAMES)
    alerts = sum(rule.kind == "alert" for rule in rules)
    return (
        f"the page of a busy broker ({page.count('# TYPE')} metrics), {len(rules)} rules, unit tests of {alerts} alerts, "
        f"{len(queries)} queries of our dashboard"
    )


def _as_rules(queries: list[str], directory: Path) -> Path:
    """A file of recording rules with these queries: promtool parses no PromQL by itself."""
    rules = []
    for number, query in enumerate(queries):
        for variable, value in _VARIABLES.items():
            query = query.replace(variable, value)
        rules.append({"record": f"query:{number}", "expr": query})
    path = directory / "queries.yml"
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))  # JSON is YAML
    return path


PROMTOOL = Tool("promtool", promtool.missing, promtool.version, check, barnabas_only=True)
