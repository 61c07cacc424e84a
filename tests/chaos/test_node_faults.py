"""The fault matrix, nodes: whatever happens to the node, another incarnation or another node ends the job once."""

from __future__ import annotations

import signal

import pytest

from taskqueue.exit_codes import Exit
from tests.chaos.conftest import HostFor
from tests.chaos.moment import Moment
from tests.chaos.process_fault import ProcessFault
from tests.nodes import eventually


@pytest.mark.parametrize("moment", Moment)
def test_a_job_ends_once_when_its_node_is_killed(host_for: HostFor, moment: Moment) -> None:
    host = host_for(ProcessFault.SIGKILL)
    host.up()
    process = moment.bring_about(host, host.add)

    ProcessFault.SIGKILL.send(host.this)
    assert host.down() == -signal.SIGKILL

    host.up()
    host.check(process, runs_at_most=2 if moment in (Moment.RUNNING, Moment.ENDED) else 1)


@pytest.mark.parametrize("moment", Moment)
def test_a_job_ends_once_when_its_node_is_asked_to_leave(host_for: HostFor, moment: Moment) -> None:
    host = host_for(ProcessFault.SIGTERM)
    host.up()
    process = moment.bring_about(host, host.add)

    ProcessFault.SIGTERM.send(host.this)
    host.this.resume()
    assert host.down() == Exit.OK

    host.up()
    host.check(process, runs_at_most=2 if moment is Moment.RUNNING else 1)


@pytest.mark.parametrize("moment", Moment)
def test_a_job_ends_once_when_its_node_is_stopped_beyond_the_lease(host_for: HostFor, moment: Moment) -> None:
    host = host_for(ProcessFault.SIGSTOP)
    host.up()
    process = moment.bring_about(host, host.add)

    ProcessFault.SIGSTOP.send(host.this)
    with host.another("second") as second:
        eventually(lambda: process.refresh().is_final or process.node == "second")
        host.gate.open()
        host.entrance.open()
        process.wait()
        host.outlast_lease()
        host.this.resume()
        assert second.stop() == Exit.OK

    host.up()
    host.check(process, runs_at_most=2 if moment in (Moment.RUNNING, Moment.ENDED) else 1)
