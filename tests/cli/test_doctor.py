"""``taskqueue doctor``: a healthy store, and each flaw with what to do about it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from taskqueue import Scheduler
from taskqueue.cli import doctor
from taskqueue.cli.systemd import unit_text
from taskqueue.errors import TooManyRuns
from taskqueue.exit_codes import Exit
from taskqueue.model.finding import Level
from tests.acceptance.work import Echo, GiveUp
from tests.cli.conftest import Answer
from tests.nodes import LIMIT, eventually, node
from tests.scheduler.jobs import Broken
from tests.store.damaging import damager


@pytest.fixture(autouse=True)
def runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the nodes of one test in a folder of their own."""
    monkeypatch.setenv("TASKQUEUE_RUNTIME_DIR", str(tmp_path / "run"))


def findings(answer: Answer, about: str) -> list[dict[str, str]]:
    """Return what was found about this."""
    return [one for one in answer.document if one["about"] == about]


def test_a_store_with_a_node_is_well(taskqueue: Callable[..., Answer], url: str, tmp_path: Path) -> None:
    with node(url, tmp_path, "--name", "web-1") as started, Scheduler(url) as scheduler:
        scheduler.wait_for([scheduler.add_job(Echo, 1)], timeout=LIMIT)
        eventually(lambda: taskqueue("health").code == Exit.OK)
        answer = taskqueue("doctor", "--json")
        text = taskqueue("doctor", "--all").out
        short = taskqueue("doctor")
    levels = {one["about"]: one["level"] for one in answer.document}
    about_us = {"store", "integrity", "journal mode", "clock", "nodes", "waiting jobs", "classes", "descriptors"}
    assert {about: levels[about] for about in about_us} == dict.fromkeys(about_us, "ok")
    assert "ok       integrity: the file is whole (quick_check)" in text
    assert f"node web-1 ({started.pid})" not in text
    assert text.splitlines()[-1] == "all is well" or text.splitlines()[-1].endswith("to do")
    assert short.out.splitlines()[-1] == text.splitlines()[-1]
    assert not [line for line in short.out.splitlines() if line.startswith("ok ")]
    assert (short.out == "all is well\n") == (short.code == Exit.OK)


def test_each_flaw_comes_with_what_to_do(taskqueue: Callable[..., Answer], url: str, tmp_path: Path) -> None:
    with Scheduler(url) as scheduler:
        failed = scheduler.add_job(GiveUp)
        behind = scheduler.add_job(Echo, 1, depends_on=[failed], on_dependency_failure="wait")
        lost = scheduler.add_job("not_there:Job", queue="lost")
        with node(url, tmp_path, "--name", "web-1", "--outbox", "tests.acceptance.work:nothing"):
            scheduler.wait_for([failed], timeout=LIMIT)
            eventually(lambda: lost.refresh().cause == "unloadable")
            [health] = eventually(lambda: [out for out in [taskqueue("health").out] if "  problem  " in out])
            of_node = eventually(lambda: findings(taskqueue("doctor", "--json"), "node"))
            [refused] = [finding for finding in of_node if "is not ready" not in finding["finding"]]
        scheduler.add_job(Echo, 1, queue="mail")
        scheduler.schedule("nightly", Echo, 1, cron="0 3 * * *").pause(reason="a test")
        answer = taskqueue("doctor", "--json")

    problem = (
        "the outbox tests.acceptance.work:nothing is not relayed: taskqueue.errors.ConfigError: --outbox "
        "tests.acceptance.work:nothing: there is no nothing in tests.acceptance.work: write nothing = Outbox(…) there"
    )
    assert f"  problem  {problem}\n" in health
    assert (refused["level"], refused["finding"]) == ("error", f"web-1: {problem}")
    assert answer.code == Exit.FLAWS
    [nodes] = findings(answer, "nodes")
    assert (nodes["level"], nodes["finding"]) == ("error", "live: none")
    assert nodes["do"].startswith("start one: ")
    [unloadable] = findings(answer, "class that cannot be loaded")
    assert unloadable["finding"].startswith("not_there:Job, of 1 job: No module")
    assert unloadable["do"].startswith("deploy its module to a node")
    assert """`taskqueue cancel --query '{"job": "not_there:Job"}' --yes`""" in unloadable["do"]
    [blocked] = findings(answer, "job that waits forever")
    assert blocked["finding"].startswith(
        f"{behind.id} (tests.acceptance.work:Echo): Job {failed.id} has ended as FAILED"
    )
    assert f"`taskqueue cancel {behind.id}`" in blocked["do"]
    [paused] = findings(answer, "schedule")
    assert paused["finding"] == "nightly is paused: a test"
    [waiting] = findings(answer, "waiting jobs")
    assert waiting["finding"] == "1 in queue mail. No node is running on this store"
    assert waiting["do"] == "start one: `taskqueue-node`"


def test_jobs_that_are_retried_in_vain_are_a_finding(taskqueue: Callable[..., Answer], url: str) -> None:
    with Scheduler(url) as scheduler:
        assert findings(taskqueue("doctor", "--json"), "failures")[0]["level"] == "ok"
        scheduler.add_jobs([(Broken, None, {"retry": -1})] * 20)
        with pytest.raises(TooManyRuns):
            scheduler.run_pending(max_runs=100)

        answer = taskqueue("doctor", "--json")

    [finding] = findings(answer, "class")
    assert finding["level"] == "error"
    assert finding["finding"].startswith(
        "tests.scheduler.jobs:Broken is tried again and again: 120 attempts failed in "
    )
    assert "ValueError: no such address, attempt … (raise ValueError(" in finding["finding"]
    assert (findings(answer, "failures"), answer.code) == ([], Exit.FLAWS)


def test_a_store_that_cannot_be_used_is_a_finding(taskqueue: Callable[..., Answer], tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_bytes(b"no database" * 1000)
    answer = taskqueue("doctor", "--all")
    assert answer.code == Exit.STORE
    assert "error    store: " in answer.out
    assert "do: " in answer.out
    assert "memory: " in answer.out  # the host is examined nevertheless


UNIT = """[Service]
Type=notify
ExecStart=/bin/true --name x
KillMode=mixed
WatchdogSec=30
Restart=always
"""


def test_a_unit_is_compared_with_what_a_node_needs(tmp_path: Path) -> None:
    unit = tmp_path / "taskqueue-node.service"
    unit.write_text(UNIT)
    [found] = doctor._units([tmp_path])
    assert (found.level, found.says) == (Level.OK, f"{unit}: as it should be")

    unit.write_text(UNIT.replace("KillMode=mixed\n", "").replace("/bin/true", "/not/there"))
    [found] = doctor._units([tmp_path])
    assert found.level is Level.WARNING
    assert "without KillMode=mixed a stop sends SIGTERM to running jobs at once" in found.says
    assert "its ExecStart '/not/there' is not a program" in found.says
    [none] = doctor._units([tmp_path / "nowhere"])
    assert none.says == "none is installed on this host"


def test_the_program_of_a_unit_is_read_as_systemd_does(tmp_path: Path) -> None:
    program = tmp_path / "my 50% jobs" / "taskqueue-node"
    program.parent.mkdir()
    program.symlink_to("/bin/true")
    written = unit_text(program, user="taskqueue", instance=False, version=252)
    (tmp_path / "taskqueue-node.service").write_text(written)

    [found] = doctor._units([tmp_path])

    assert found.level is Level.OK, found.says


def test_derived_fields_that_disagree_are_named_and_written_again(taskqueue: Callable[..., Answer], url: str) -> None:
    with Scheduler(url) as scheduler, damager(url.partition("?")[0]) as damage:
        jobs = [scheduler.add_job(Echo, number) for number in range(7)]
        for job in jobs:
            damage("jobs", job.id, "rank", 5)

    found = findings(taskqueue("doctor", "--json"), "derived fields")
    assert [one["finding"] for one in found[:5]] == [
        f"job {job.id}: rank disagrees with the fields that it repeats" for job in jobs[:5]
    ]
    assert (found[5]["finding"], found[5]["level"]) == ("2 more", "error")
    assert found[0]["do"].startswith("`taskqueue doctor --repair`")
    repaired = taskqueue("doctor", "--repair", "--json")
    assert [one["finding"] for one in findings(repaired, "repair")] == ["the derived fields of 7 records were wrong"]
    assert [one["level"] for one in findings(repaired, "derived fields")] == ["ok"]
    again = taskqueue("doctor", "--repair", "--json")
    assert "ok       repair: there was nothing to repair" in taskqueue("doctor", "--repair").out
    assert [one["finding"] for one in findings(again, "repair")] == ["there was nothing to repair"]
    assert taskqueue("audit", "--json").out.count('"repair"') == 3
