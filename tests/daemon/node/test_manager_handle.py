"""What a node can still do with the line to a manager that is gone."""

from __future__ import annotations

from typing import Any

from taskqueue.daemon.manager.manager import fork_manager
from taskqueue.daemon.node.manager_handle import ForkedManager, ManagerHandle
from tests.daemon.fake_node import settings
from tests.daemon.node.conftest import context_of

NOBODY: Any = None
"""Who would hear of reports: there are none."""


def test_a_manager_that_is_gone_is_killed_without_a_complaint() -> None:  # one more Ctrl-C while the node leaves
    context = context_of(NOBODY, NOBODY)
    line = ManagerHandle(
        ForkedManager(*fork_manager(settings())),
        context,
        in_flight=NOBODY,
        hooks=NOBODY,
        events=NOBODY,
        stacks=NOBODY,
        on_startup_failed=NOBODY,
    )

    line.kill()
    assert str(line.reap()) == "killed by SIGKILL"

    line.kill()
