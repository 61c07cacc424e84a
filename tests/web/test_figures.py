"""The metrics of the store that the dashboard serves are those of the leader of real nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from taskqueue import Scheduler
from taskqueue.web import app
from tests.acceptance.test_metrics import ONE, heed, port_of
from tests.acceptance.work import Echo, Prompt
from tests.nodes import LIMIT, node


@pytest.mark.parametrize("url", ["sqlite", "mongodb", "postgresql"], indirect=True)
def test_the_dashboard_has_the_metrics_of_the_store_as_the_leader_has_them(
    url: str, scheduler: Scheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKQUEUE_RUNTIME_DIR", str(tmp_path / "run"))
    with node(url, tmp_path, "--metrics", "0", *ONE) as running:
        port = port_of(running)
        scheduler.pause("reports", "a test")
        scheduler.drain("web-9", "a test")
        scheduler.add_job(Echo, 1, queue='re"ports\\')
        scheduler.schedule("ticks", Echo, data=1, every=3600, overlap="allow").trigger().wait(timeout=LIMIT)
        scheduler.wait_for([scheduler.add_job(Prompt)], timeout=LIMIT)
        scheduler.add_jobs([(Echo, 1, {"queue": "reports", "limits": ["2 name=api"]})] * 3)
        heed(port, 'taskqueue_promise_budget_ratio{class="tests.acceptance.work:Prompt"}', 1)
        heed(port, 'taskqueue_limit_waiting{limit="limit:name=api"}', 3)
        text = heed(port, 'taskqueue_findings{severity="error"}', 0)

        client = ("127.0.0.1", 5000)
        with TestClient(app(scheduler, local=True), base_url="http://127.0.0.1", client=client) as browser:
            answer = browser.get("/api/v1/metrics")

    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    shown, of_leader = samples(answer.text), samples(text)
    changing = {name for name in shown if name.startswith("taskqueue_oldest_waiting_seconds")}
    assert shown.keys() - changing <= of_leader.keys()
    assert {name: shown[name] for name in shown.keys() - changing} == {
        name: of_leader[name] for name in shown.keys() - changing
    }
    assert {name.partition("{")[0] for name in shown} >= {
        "taskqueue_paused", "taskqueue_drained", "taskqueue_limit_used", "taskqueue_limit_size",
        "taskqueue_jobs", "taskqueue_nodes", "taskqueue_leader", "taskqueue_findings", "taskqueue_promise_budget_ratio",
        "taskqueue_schedule_last_due_timestamp_seconds", "taskqueue_schedule_last_success_timestamp_seconds",
    }  # fmt: skip


def samples(text: str) -> dict[str, float]:
    """Return the value of each sample by its name and labels, in the order of these."""
    return {
        f"{sample.name}{dict(sorted(sample.labels.items()))}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
