"""Deals the tests to the processes of pytest-xdist: some compute while the others wait for nodes, the longest first.

Tests that start nodes take most of the time of a run and next to nothing of the processor. As many processes as there
are cores begin with the tests that compute, all others with those that wait; whoever has no more of its kind takes the
other. The tests of a file stay together, because they share what takes long to make, but for ``SPREAD``.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Sequence
from typing import Any

from xdist.scheduler.loadscope import LoadScopeScheduling  # type: ignore[import-untyped]

WAITING = ("acceptance", "chaos", "docs")
"""Folders of tests that start nodes and wait for them."""

UNCOUNTED = ("ancestors", "benchmarks", "chaos", "docs", "typing", "test_architecture.py")
"""Folders and files whose tests run without coverage: other tests execute the same lines of the product."""

OTHER_STORES = ("mongodb", "postgresql")
OF_STORES = ("store", "outbox")
"""Elsewhere only the cases on SQLite are counted: tests of these folders execute the lines of the other stores."""

CONTRACT = "store/test_"
OF_POSTGRESQL = "store/test_postgresql_"
"""Only these files of the contract are counted on PostgreSQL: the others execute the code it shares with SQLite."""

ON_ALL_STORES = (
    *("acceptance/test_one_node.py", "chaos/test_manager_faults.py", "chaos/test_node_faults.py"),
    "chaos/test_worker_faults.py",
)
"""Outside of ``OF_STORES``, only these tests run every day on all stores, the others on SQLite if they can."""

SPREAD = ("acceptance", "chaos/test_storm.py", "docs/test_pages.py")
"""Files and folders of which each test goes to any process."""

TOGETHER = ("acceptance/test_quickstart.py",)
"""Files in these folders whose tests share what takes long to make."""

LONGEST = (
    "chaos/test_storm.py",
    "chaos/test_node_faults.py",
    "chaos/test_manager_faults.py",
    "chaos/test_failover.py",
    "chaos/test_outages.py",
    "chaos/test_client_faults.py",
    "chaos/test_killed_together.py",
    "chaos/test_worker_faults.py",
    "chaos/test_node_output.py",
    "chaos/test_short_hosts.py",
    "acceptance/test_quickstart.py",
    "docs/test_pages.py",
    "docs/test_examples.py",
    "docs/test_monitoring.py",
    "web/test_browser.py",
    "store/test_mongodb_cut_off.py",
    "store/test_damage.py",
    "store/test_limits.py",
    "store/test_fair_claims.py",
    "django/test_backend.py",
    "django/test_taskqueue.py",
    "django/test_dashboard.py",
    "store/test_mongodb_driver_errors.py",
    "cli/test_web.py",
    "web/test_browser_actions.py",
    "web/test_openapi.py",
    "web/test_paths.py",
    "web/test_ten_questions.py",
    "web/test_page_costs.py",
    "web/test_roles.py",
    "store/test_postgresql_connection.py",
    "store/test_mongodb_commands.py",
    "store/test_random_graphs.py",
    "test_hanging.py",
    "test_architecture.py",
    "cli/test_damage.py",
    "cli/test_node.py",
    "cli/test_bench.py",
    "store/test_queries.py",
    "scheduler/test_wait.py",
    "daemon/manager/test_manager.py",
    "daemon/manager/test_scaling.py",
    "cli/test_secrets.py",
)
"""Files to begin with: what takes minutes must not be the last."""


def place(file: str) -> int:
    """Return a number by which files below ``tests`` are sorted."""
    return LONGEST.index(file) if file in LONGEST else len(LONGEST)


def is_uncounted(file: str, cases: Iterable[object] = ()) -> bool:
    """Return whether a test of a file below ``tests`` with these values of its parameters runs without coverage."""
    repeated: tuple[str, ...] = () if _is_below(file, OF_STORES) else OTHER_STORES
    if file.startswith(CONTRACT) and not file.startswith(OF_POSTGRESQL):
        repeated = ("postgresql",)
    return any(case in repeated for case in cases) or _is_below(file, UNCOUNTED)


def is_repeated(test: str, case: object, tests: Container[str]) -> bool:
    """Return whether a test, with this parameter, shows on another store what one of ``tests`` shows on SQLite."""
    file = test.partition("::")[0].removeprefix("tests/")
    if case not in OTHER_STORES or _is_below(file, (*OF_STORES, *ON_ALL_STORES)):
        return False
    return test.replace(str(case), "sqlite") in tests


def scope(test: str) -> str:
    """Return what is dealt together with the test: its file, or itself alone."""
    file = test.partition("::")[0]
    inside = file.removeprefix("tests/")
    return test if _is_below(inside, SPREAD) and inside not in TOGETHER else file


def _is_below(file: str, places: Sequence[str]) -> bool:
    return any(file == place or file.startswith(f"{place}/") for place in places)


class ComputingBesideWaiting(LoadScopeScheduling):  # type: ignore[misc]
    """Gives each process the next test of its kind."""

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid)

    def remove_node(self, node: Any) -> str | None:
        """Take the tests of a process that has ended back, and return the test that ended it, which is not run again.

        Run again, it would end one process after another.
        """
        units = self.assigned_work[node]
        crashed = next((test for unit in units.values() for test, is_done in unit.items() if not is_done), None)
        for place, unit in list(units.items()):
            if crashed in unit:
                unit[crashed] = True
            if all(unit.values()):
                del units[place]
        super().remove_node(node)
        return crashed

    def _reschedule(self, node: Any) -> None:
        """Deal the process more tests, and tell it if these are the last.

        A process runs a test only when it knows the next one, or that there is none. One that takes the place of a
        crashed process is dealt tests only once, so without a second test it would wait for ever.
        """
        super()._reschedule(node)
        while self.workqueue and not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            self._assign_work_unit(node)
        if not self.workqueue:
            node.shutdown()

    def _assign_work_unit(self, node: Any) -> None:
        waits = int(node.gateway.id.removeprefix("gw")) >= len(os.sched_getaffinity(0))
        mine = (each for each in self.workqueue if _is_below(each.removeprefix("tests/"), WAITING) is waits)
        if (first := next(mine, None)) is not None:
            self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)
