"""Real nodes apply the schedules that their application declares: at their start, once per deployment."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from taskqueue import Scheduler, Status
from taskqueue.exit_codes import Exit
from tests.acceptance.work import Echo
from tests.nodes import LIMIT, Node, eventually, node

SHOP = """
from taskqueue import schedule, task

@schedule("nightly", cron="15 3 * * *")
@task
def clean():
    return "clean"

@schedule("at-once", every=-1, max_runs=2)
@task
def warm_up():
    return "warm"
"""

CRONTAB = r"""
SHELL=/bin/bash
GREETING = "hello, "
HOME=/tmp
@yearly shopt -q expand_aliases || echo "$GREETING"$PWD \%
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Return a module that declares two schedules, in the folder of the nodes."""
    path = tmp_path / "declaring_shop.py"
    path.write_text(SHOP)
    return path


def names(scheduler: Scheduler) -> list[str]:
    return [schedule.name for schedule in scheduler.get_schedules()]


def is_applied(running: Node, name: str) -> bool:
    """Return whether the node says so, which is after the set was remembered."""
    said = re.findall("application declaring_shop .* schedules: (.*)", running.log.read_text())
    return any(name in names.split(", ") for names in said)


def ended(scheduler: Scheduler) -> int:
    return scheduler.count_jobs({"job": "declaring_shop:warm_up", "status": "DONE"})


@pytest.mark.parametrize("options", [(), ("--preload", "declaring_shop"), ("--pm", "static", "--min-children", "1")])
def test_a_node_applies_what_its_application_declares_and_starts_the_jobs(
    url: str, scheduler: Scheduler, shop: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    scheduler.schedule("by-hand", Echo, every="1h")
    with node(url, tmp_path, "--schedules", "declaring_shop", *options) as running:
        eventually(lambda: ended(scheduler) == 2)
        assert running.stop() == Exit.OK

    assert names(scheduler) == ["at-once", "by-hand", "nightly"]
    assert [one.snapshot.application for one in scheduler.get_schedules()] == ["declaring_shop", None, "declaring_shop"]
    assert "application declaring_shop adds schedules: at-once, nightly" in running.log.read_text()


@pytest.mark.parametrize("options", [(), ("--preload", "declaring_shop")])
def test_a_node_that_loads_new_code_applies_what_that_declares(
    url: str, scheduler: Scheduler, shop: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    environment = {"PYTHONDONTWRITEBYTECODE": "1"}  # the file changes within a second
    with node(url, tmp_path, "--schedules", "declaring_shop", *options, **environment) as running:
        eventually(lambda: len(names(scheduler)) == 2)
        shop.write_text(SHOP.replace('"nightly"', '"new"'))
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: names(scheduler) == ["at-once", "new"])
        assert running.stop() == Exit.OK


def test_a_node_with_the_code_of_an_older_deployment_undoes_nothing(
    url: str, scheduler: Scheduler, shop: Path, tmp_path: Path
) -> None:
    older, newer = tmp_path / "older", tmp_path / "newer"
    for folder, name in ((older, "nightly"), (newer, "new")):
        folder.mkdir()
        (folder / "declaring_shop.py").write_text(SHOP.replace('"nightly"', f'"{name}"'))
        with node(url, folder, "--schedules", "declaring_shop") as running:
            eventually(partial(is_applied, running, name))
    with node(url, older, "--schedules", "declaring_shop") as restarted:
        eventually(lambda: "another deployment has replaced this one's" in restarted.log.read_text())
        assert restarted.stop() == Exit.OK

    assert names(scheduler) == ["at-once", "new"]


def test_an_application_that_cannot_be_imported_is_logged_and_applied_once_it_can(
    url: str, scheduler: Scheduler, shop: Path, tmp_path: Path
) -> None:
    shop.write_text("nothing\n")
    with node(url, tmp_path, "--schedules", "declaring_shop") as running:
        words = (
            "the hook apply_schedules failed: taskqueue.errors.ConfigError: module declaring_shop cannot be imported"
        )
        eventually(lambda: words in running.log.read_text())
        [job] = scheduler.wait_for([scheduler.add_job(Echo, 1)], timeout=LIMIT)
        assert job.status is Status.DONE
        shop.write_text(SHOP)
        eventually(lambda: names(scheduler) == ["at-once", "nightly"])
        assert running.stop() == Exit.OK


def test_schedules_that_cannot_be_stored_are_tried_again(
    url: str, scheduler: Scheduler, shop: Path, tmp_path: Path
) -> None:
    by_hand = scheduler.schedule("nightly", Echo, every="1h")
    with node(url, tmp_path, "--schedules", "declaring_shop") as running:
        eventually(lambda: "(trying again in 2 s)" in running.log.read_text())
        assert names(scheduler) == ["nightly"]
        by_hand.remove()
        eventually(lambda: names(scheduler) == ["at-once", "nightly"])
        assert running.stop() == Exit.OK


@pytest.mark.parametrize("options", [(), ("--schedules", "declaring_shop")])
def test_a_burst_applies_the_schedules_and_runs_what_they_start_at_once(
    url: str, scheduler: Scheduler, shop: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    command = [sys.executable, "-m", "taskqueue", "--url", url, "run", str(shop), "--burst", *options]
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=2 * LIMIT)

    assert done.returncode == Exit.OK, done.stderr
    assert names(scheduler) == ["at-once", "nightly"]
    assert ended(scheduler) == 2


def test_a_node_runs_the_commands_of_an_imported_crontab(url: str, scheduler: Scheduler, tmp_path: Path) -> None:
    (tmp_path / "crontab").write_text(CRONTAB)
    command = [sys.executable, "-m", "taskqueue", "--url", url, "schedule", "import", str(tmp_path / "crontab")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == Exit.OK, done.stderr

    [imported] = scheduler.get_schedules()
    with node(url, tmp_path):
        job = imported.trigger().wait(LIMIT, raise_on_error=True)

    assert job.result == {"exit_code": 0, "stdout": "hello, /tmp %\n", "stderr": ""}
