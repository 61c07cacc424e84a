"""The fault matrix, managers: whatever happens to the manager, its node leaves, and the job ends once on the next."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskqueue import Scheduler, Status
from taskqueue.exit_codes import Exit
from taskqueue.model.record import Cause
from tests.chaos.conftest import HostFor
from tests.chaos.host import OPTIONS
from tests.chaos.moment import Moment
from tests.chaos.process_fault import ProcessFault
from tests.chaos.work import ManagerKiller
from tests.nodes import node


@pytest.mark.parametrize("fault", ProcessFault)
@pytest.mark.parametrize("moment", Moment)
def test_a_job_ends_once_whatever_happens_to_the_manager(
    host_for: HostFor, moment: Moment, fault: ProcessFault
) -> None:
    host = host_for(fault)
    host.up()
    process = moment.bring_about(host, host.add)

    fault.send(host.manager())
    host.this.resume()
    assert host.down() == Exit.LOST

    host.up()
    host.check(process, runs_at_most=2 if moment is Moment.RUNNING else 1)


def test_a_job_that_kills_the_manager_as_soon_as_it_begins_has_crashed(url: str, tmp_path: Path) -> None:
    (tmp_path / "boot.py").touch()
    with Scheduler(url) as scheduler:
        process = scheduler.add_job(ManagerKiller, crash_retries=1)

        for crashes in (1, 2):
            with node(url, tmp_path, *OPTIONS) as killed:
                assert killed.wait() == Exit.LOST
            assert process.refresh().snapshot.crashes == crashes

    assert (process.status, process.cause) == (Status.FAILED, Cause.CRASHED)
    assert all(attempt.started_at for attempt in process.attempts)
