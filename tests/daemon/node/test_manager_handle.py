"""What a node can still do with the line to a manager that is gone."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from typing import Any

from taskqueue.daemon.manager.manager import fork_manager
from taskqueue.daemon.node.manager_handle import ForkedManager, ManagerHandle
from taskqueue.daemon.runtime import child_process
from taskqueue.insight import host
from tests.daemon.fake_node import settings
from tests.daemon.node.conftest import context_of

NOBODY: Any = None
"""Who would hear of reports: there are none."""


def forked(siblings: Iterable[int]) -> ManagerHandle:
    context = context_of(NOBODY, NOBODY)
    return ManagerHandle(
        ForkedManager(*fork_manager(settings()), {pid: host.born_at(pid) for pid in siblings}),
        context,
        in_flight=NOBODY,
        hooks=NOBODY,
        events=NOBODY,
        stacks=NOBODY,
        on_startup_failed=NOBODY,
    )


def test_a_manager_that_is_gone_is_killed_without_a_complaint() -> None:  # one more Ctrl-C while the node leaves
    line = forked(child_process.children())

    line.kill()
    assert str(line.reap()) == "killed by SIGKILL"

    line.kill()


def test_children_that_its_process_had_before_outlive_a_manager() -> None:
    """As those of a shell that has become the node by ``exec``; others were left behind by jobs."""
    others = child_process.children()
    with subprocess.Popen(["sleep", "1000"]) as before:
        line = forked([*others, before.pid])
        with subprocess.Popen(["sleep", "1000"]) as after:
            line.kill()
            line.reap()

            assert before.poll() is None
        assert after.returncode == 0  # the line has reaped it
        with subprocess.Popen(["sleep", "1000"]) as later:  # whose parent took long to die
            line.kill_left()

            assert before.poll() is None
        assert later.returncode == 0
        before.kill()
