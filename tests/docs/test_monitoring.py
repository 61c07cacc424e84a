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
SERIES = re.compile(r"(?<!:)\b(?:taskqueue|process)_[a-z_]+\b(?!:)")


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
    assert "SUCCESS: 19 rules found" in check("check", "rules", str(RULES))


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
    ("TaskqueueDown", 'up{job="taskqueue",instance="a"}', "1x5 0x25", 'instance="a"'),
    ("TaskqueueNodeHangs", 'taskqueue_live{instance="a"}', "1x5 0x25", 'instance="a"'),
    ("TaskqueueStoreDegraded", 'taskqueue_store_up{instance="a"}', "1x5 0x25", 'instance="a"'),
    ("TaskqueueCrashes", 'taskqueue_crashes_total{instance="a"}', "0+1x30", 'instance="a"'),
    ("TaskqueueFailureRate", 'taskqueue_runs_total{class="a:B",outcome="failed"}', "0+1x30", 'class="a:B"'),
)


@pytest.mark.parametrize(("alert", "series", "values", "labels"), CASES)
def test_an_alert_fires_for_what_it_is_named_after(
    tmp_path: Path, alert: str, series: str, values: str, labels: str
) -> None:
    firing(tmp_path, {series: values}, "25m", {alert: labels})


def firing(folder: Path, series: dict[str, str], at: str, alerts: dict[str, str]) -> None:
    """Fail unless exactly these alerts fire at this time, each once with these labels; samples are a minute apart."""
    input = [{"series": name, "values": values} for name, values in series.items()]
    if "TaskqueueNoLeader" not in alerts:
        input.append({"series": 'taskqueue_leader{instance="b"}', "values": "1x2000"})
    tests: list[dict[str, Any]] = [
        {
            "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"{"," * bool(labels)}{labels}}})',
            "eval_time": at,
            "exp_samples": [{"labels": "{}", "value": 1}],
        }
        for alert, labels in alerts.items()
    ]
    others = "|".join(alerts)
    tests.append({"expr": f'ALERTS{{alertname!~"{others}",alertstate="firing"}}', "eval_time": at})
    case = {"interval": "1m", "input_series": input, "promql_expr_test": tests}
    file = folder / "case.yml"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [case]}))
    check("test", "rules", str(file))


FAST, SLOWLY = "TaskqueuePromiseBurnsFast", "TaskqueuePromiseBurnsSlowly"


@pytest.mark.parametrize(
    ("late", "share", "at", "alerts"),
    [
        ("0+0x500", 0.99, "400m", ()),
        ("0+10x500", 0.99, "400m", ()),  # a tenth of what may be late
        ("0+70x500", 0.99, "400m", (SLOWLY,)),  # seven times as much
        ("0+160x500", 0.99, "400m", (FAST, SLOWLY)),
        ("0x300 0+160x200", 0.99, "400m", (FAST,)),  # for 100 minutes
        ("0+160x300 48000x200", 0.99, "310m", (SLOWLY,)),  # until 10 minutes ago
        ("0+160x300 48000x200", 0.99, "400m", ()),
        ("0+400x500", 0.5, "400m", ()),  # fewer than may be late
        ("0+800x500", 0.5, "400m", (FAST, SLOWLY)),  # 14 times as many cannot be
    ],
)
def test_a_promise_that_is_not_kept_fires_by_how_fast_its_budget_burns(
    tmp_path: Path, late: str, share: float, at: str, alerts: tuple[str, ...]
) -> None:
    of_class = '{class="a:B"}'
    series = {
        f"taskqueue_promise_jobs_total{of_class}": "0+1000x500",
        f"taskqueue_promise_late_total{of_class}": late,
        f"taskqueue_promise_ratio{of_class}": f"{share}x500",
    }
    firing(tmp_path, series, at, dict.fromkeys(alerts, 'class="a:B"'))


def test_a_backlog_that_a_restarted_node_works_off_fires(tmp_path: Path) -> None:
    series: dict[str, str] = {}
    for instance, jobs, late in (("before", "0+1x300 _x200", "0x300 _x200"), ("after", *2 * ("_x300 0 480x200",))):
        of_class = f'{{class="a:B",instance="{instance}"}}'
        series[f"taskqueue_promise_jobs_total{of_class}"] = jobs
        series[f"taskqueue_promise_late_total{of_class}"] = late
        series[f"taskqueue_promise_ratio{of_class}"] = "0.99x500"
    firing(tmp_path, series, "302m", dict.fromkeys((FAST, SLOWLY), 'class="a:B"'))


@pytest.mark.parametrize(("jobs", "alerts"), [(1, ()), (8, ()), (12, (FAST, SLOWLY))])
def test_a_few_late_jobs_of_a_class_that_seldom_runs_fire_nothing(
    tmp_path: Path, jobs: int, alerts: tuple[str, ...]
) -> None:
    of_class = '{class="a:B"}'
    series = {
        f"taskqueue_promise_jobs_total{of_class}": f"0x300 {jobs}x200",
        f"taskqueue_promise_late_total{of_class}": f"0x300 {jobs}x200",
        f"taskqueue_promise_ratio{of_class}": "0.99x500",
    }
    firing(tmp_path, series, "303m", dict.fromkeys(alerts, 'class="a:B"'))


SILENT = "TaskqueueScheduleSilent"


@pytest.mark.parametrize(
    ("due", "done", "at", "fires"),
    [
        ("100x1440", "200x1440", "200m", False),  # done at 200, after it was due at 100
        ("100x1440", "50x1440", "200m", True),
        ("100x1440", "_x1440", "200m", True),  # never done
        ("100x1440", "_x1440", "50m", False),  # due for less than an hour
        ("100x60 3700+60x1440", "200x1440", "200m", True),  # due each minute, and not done since
        ("100x60 3700+60x1440", "200x60 3700+60x1440", "200m", False),
        ("100x100 6000x1440", "200x60 _x1440", "140m", False),  # its node is gone, and it was due again 40 minutes ago
        ("100x100 6000x1440", "200x60 _x1440", "200m", True),
        ("100x100 _x1440", "50x1440", "200m", False),  # paused or removed
    ],
)
def test_a_schedule_whose_jobs_are_not_done_is_silent(
    tmp_path: Path, due: str, done: str, at: str, fires: bool
) -> None:
    series = {
        'taskqueue_schedule_last_due_timestamp_seconds{schedule="nightly",instance="a"}': due,
        'taskqueue_schedule_last_success_timestamp_seconds{schedule="nightly",instance="b"}': done,
    }
    firing(tmp_path, series, at, {SILENT: 'schedule="nightly"'} if fires else {})


def test_each_alert_leads_to_an_entry_of_the_troubleshooting_page() -> None:
    text = RULES.read_text()
    alerts = re.findall(r"- alert: (\w+)", text)
    links = re.findall(r"runbook_url: docs/how-to/operations/troubleshooting\.md#(\S+)", text)
    page = (OPERATIONS / "troubleshooting.md").read_text()
    headings = re.findall(r"^## (.+)$", page, re.MULTILINE)
    assert sorted(alerts) == sorted([FAST, SLOWLY, SILENT, *(alert for alert, *_ in CASES)])
    assert len(alerts) == len(links)
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


def test_each_variable_of_the_dashboard_filters_panels_by_its_label() -> None:
    variables = json.loads(DASHBOARD.read_text())["templating"]["list"]
    filters = {pair for query in expressions() for pair in re.findall(r'(\w+)=~"\$(\w+)"', query)}
    assert filters == {(variable["name"], variable["name"]) for variable in variables if variable["type"] == "query"}
    of_all = {variable["name"]: variable for variable in variables if "allValue" in variable}
    assert of_all.keys() == {"queue", "class", "instance"}
    for name, variable in of_all.items():
        assert re.fullmatch(rf"label_values\(taskqueue_\w+, {name}\)", variable["query"])
        assert variable["allValue"] == ".*"


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
