"""The mixin for unittest: what its tests have, and that one test leaves nothing to the next."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import IsolatedAsyncioTestCase, TestCase

import pytest

from taskqueue import AsyncScheduler, Scheduler
from taskqueue.testing import MovableClock, TaskqueueMixin
from tests.testing.work import Mail

APPLICATION = Scheduler()


class TestStore(TaskqueueMixin, TestCase):
    """Each test has an empty store."""

    def test_jobs_are_added_and_run(self) -> None:
        APPLICATION.add_job(Mail, {"to": "a"})
        self.jobs.assert_added(Mail, data={"to": "a"})
        assert [process.is_done for process in self.jobs.drain()] == [True]
        assert self.scheduler.count_jobs() == 1

    def test_another_test_has_another_store(self) -> None:
        assert os.environ["TASKQUEUE_URL"] == self.taskqueue_url
        assert self.scheduler.count_jobs() == 0
        APPLICATION.add_job(Mail)
        assert self.scheduler.count_jobs() == 1

    def test_the_clock_stands_and_moves(self) -> None:
        began = self.clock.now()
        process = self.scheduler.add_job(Mail, at="+1 hour")
        assert self.jobs.drain() == []
        assert self.clock.now() == began
        self.clock.move("1h")
        assert self.jobs.drain() == [process]
        assert isinstance(self.clock, MovableClock)

    def test_a_real_node_runs_jobs(self) -> None:
        self.start_node()
        assert self.scheduler.add_job(Mail).wait(timeout=60).is_done


class TestHooks(TaskqueueMixin, TestCase):
    """A class sets the hooks, and its setUp comes after that of the mixin."""

    def setUp(self) -> None:
        self.ended: list[str] = []
        self.taskqueue_hooks = {"run_ended": lambda job, outcome: self.ended.append(outcome.name)}
        super().setUp()
        self.added = self.scheduler.add_job(Mail)

    def test_a_hook_is_called(self) -> None:
        assert self.jobs.drain() == [self.added]
        assert self.ended == ["Done"]


class TestAsyncio(TaskqueueMixin, IsolatedAsyncioTestCase):
    """Tests of asyncio have the same."""

    async def test_the_asyncio_client_has_the_store(self) -> None:
        async with AsyncScheduler() as scheduler:
            await scheduler.add_job(Mail)
        self.jobs.assert_added(Mail)


def test_errors_and_left_nodes_leave_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text(
        "import sys, unittest\n"
        "sys.modules['pytest'] = None  # not installed\n"
        "from taskqueue.testing import TaskqueueMixin\n"
        "class Failing(TaskqueueMixin, unittest.TestCase):\n"
        "    def test_it(self):\n"
        "        self.start_node()\n"
        "        raise ValueError('on purpose')\n"
        "class Alone(TaskqueueMixin):\n"
        "    pass\n"
        "class Wrong(unittest.TestCase):\n"
        "    def test_it(self):\n"
        "        with self.assertRaisesRegex(TypeError, 'Alone is not a TestCase: name one after TaskqueueMixin'):\n"
        "            Alone().setUp()\n"
    )
    with tempfile.TemporaryDirectory(dir="/tmp") as temporary:  # the path of a socket has a limit
        ran = subprocess.run(
            [sys.executable, "-W", "error", "-m", "unittest", "-v"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(Path.cwd()), "TMPDIR": temporary},
            capture_output=True,
            text=True,
        )
        assert "Ran 2 tests" in ran.stderr, ran.stderr
        assert "Exception ignored" not in ran.stderr, ran.stderr
        assert "FAILED (errors=1)" in ran.stderr
        assert "ValueError: on purpose" in ran.stderr
        assert os.listdir(temporary) == []


@pytest.mark.parametrize("before", ["sqlite:///srv/shop.db", None])
def test_the_variable_is_as_it_was_when_a_test_has_ended(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if before is not None:
        monkeypatch.setenv("TASKQUEUE_URL", before)
    result = TestStore("test_jobs_are_added_and_run").run()
    assert result is not None
    assert (result.testsRun, result.errors, result.failures) == (1, [], [])
    assert os.environ.get("TASKQUEUE_URL") == before
