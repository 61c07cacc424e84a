"""Dashboard and alert rules: read by promtool, about metrics that a node has, each alert with an entry of the docs."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.test_metrics import page, port_of
from tests.nodes import LIMIT, eventually, node
from tests.promtool import promtool

DOCS = Path(__file__).parents[2] / "docs"
OPERATIONS = DOCS / "how-to/operations"
RULES = DOCS / "monitoring" / "alerts.yml"
DASHBOARD = DOCS / "monitoring" / "dashboard.json"
SERIES = re.compile(r"\b(?:taskqueue|process)_[a-z_]+\b")


def check(*arguments: str) -> str:
    """Return what promtool says; fail where it is not content."""
    done = subprocess.run([promtool(), *arguments], capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def panels() -> list[dict[str, Any]]:
    """Return the panels of the dashboard."""
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def expressions() -> list[str]:
    """Return the queries of the dashboard, and those that scale pods."""
    scaling = re.findall(r"^ +query: (.+)$", (OPERATIONS / "kubernetes.md").read_text(), re.MULTILINE)
    assert scaling
    return [*(target["expr"] for panel in panels() for target in panel["targets"]), *scaling]


def without_suffix(name: str) -> str:
    """Return the name of the metric that a series belongs to."""
    return re.sub(r"_(?:bucket|sum|count)$", "", name)


def test_promtool_is_content_with_the_rules() -> None:
    assert "SUCCESS: 9 rules found" in check("check", "rules", str(RULES))


def test_promtool_understands_every_query_of_the_dashboard(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(expressions())]
    file = tmp_path / "queries.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))  # JSON is YAML, too
    check("check", "rules", str(file))


CASES = (
    ("TaskqueueFindings", 'taskqueue_findings{severity="error"}', "0x5 2x25", ""),
    ("TaskqueueFindingsUnknown", "taskqueue_findings_looked_timestamp_seconds", "0x30", ""),
    ("TaskqueueBacklogAge", 'taskqueue_oldest_waiting_seconds{queue="mail"}', "0+60x30", 'queue="mail"'),
    ("TaskqueueNoLeader", 'taskqueue_leader{instance="a"}', "0x30", ""),
    ("TaskqueueNodeLost", 'taskqueue_nodes{state="lost"}', "0x5 1x25", ""),
    ("TaskqueueNodeHangs", 'taskqueue_live{instance="a"}', "1x5 0x25", 'instance="a"'),
    ("TaskqueueStoreDegraded", 'taskqueue_store_up{instance="a"}', "1x5 0x25", 'instance="a"'),
    ("TaskqueueCrashes", 'taskqueue_crashes_total{instance="a"}', "0+1x30", 'instance="a"'),
    ("TaskqueueFailureRate", 'taskqueue_runs_total{class="a:B",outcome="failed"}', "0+1x30", 'class="a:B"'),
)


@pytest.mark.parametrize(("alert", "series", "values", "labels"), CASES)
def test_an_alert_fires_for_what_it_is_named_after(
    tmp_path: Path, alert: str, series: str, values: str, labels: str
) -> None:
    input = [{"series": series, "values": values}]
    if alert != "TaskqueueNoLeader":
        input.append({"series": 'taskqueue_leader{instance="b"}', "values": "1x30"})
    query = f'count(ALERTS{{alertname="{alert}",alertstate="firing"{"," * bool(labels)}{labels}}})'
    fires = {"expr": query, "eval_time": "25m", "exp_samples": [{"labels": "{}", "value": 1}]}
    others = {"expr": f'ALERTS{{alertname!="{alert}",alertstate="firing"}}', "eval_time": "25m"}
    case = {"interval": "1m", "input_series": input, "promql_expr_test": [fires, others]}
    file = tmp_path / "case.yml"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [case]}))
    check("test", "rules", str(file))


def test_each_alert_leads_to_an_entry_of_the_troubleshooting_page() -> None:
    text = RULES.read_text()
    alerts = re.findall(r"- alert: (\w+)", text)
    links = re.findall(r"runbook_url: docs/how-to/operations/troubleshooting\.md#(\S+)", text)
    page = (OPERATIONS / "troubleshooting.md").read_text()
    headings = re.findall(r"^## (.+)$", page, re.MULTILINE)
    assert len(alerts) == len(links) == len(CASES)
    assert set(links) <= {heading.lower().replace(" ", "-") for heading in headings}


def test_every_metric_in_dashboard_rules_and_docs_is_one_that_a_leader_has(tmp_path: Path) -> None:
    with node(f"sqlite:///{tmp_path}/jobs.db", tmp_path, "--metrics", "0", "--notify", "true") as started:
        port = port_of(started)
        text = eventually(lambda: found if "taskqueue_jobs" in (found := page(port, "/metrics")[1]) else "")
    had = set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))

    named = {without_suffix(name) for query in [*expressions(), RULES.read_text()] for name in SERIES.findall(query)}
    assert named - had == set()
    table = (OPERATIONS / "monitoring.md").read_text().partition("\n| metric |")[2].partition("\n\n")[0]
    documented = set(re.findall(r"`(taskqueue_\w+)`", table))
    assert documented == {name for name in had if name.startswith("taskqueue_")}


def test_the_panels_of_the_dashboard_lie_beside_one_another() -> None:
    assert len({panel["id"] for panel in panels()}) == len(panels())
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        columns, rows = range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        cells = set(itertools.product(columns, rows))
        assert max(columns) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
