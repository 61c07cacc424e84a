"""The fault matrix, workers: whatever happens to the worker of a job, the job ends once."""

from __future__ import annotations

from contextlib import suppress

import psutil
import pytest

from tests.chaos.conftest import HostFor
from tests.chaos.moment import Moment
from tests.chaos.process_fault import ProcessFault


@pytest.mark.parametrize("fault", ProcessFault)
@pytest.mark.parametrize("moment", Moment)
def test_a_job_ends_once_whatever_happens_to_its_worker(host_for: HostFor, moment: Moment, fault: ProcessFault) -> None:
    host = host_for(fault)
    host.up()
    process = moment.bring_about(host, host.add)

    worker = host.worker()
    fault.send(worker)
    host.this.resume()
    if fault is ProcessFault.SIGSTOP:
        host.outlast_lease()
        with suppress(psutil.NoSuchProcess):  # one that is idle is replaced if its node's lease was in doubt meanwhile
            worker.resume()

    host.up()
    began_twice = moment is Moment.RUNNING and fault is not ProcessFault.SIGSTOP
    host.check(process, runs_at_most=2 if began_twice else 1)
