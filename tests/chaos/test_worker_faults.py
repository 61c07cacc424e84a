"""The fault matrix, workers: whatever happens to the worker of a job, the job ends once."""

from __future__ import annotations

from contextlib import suppress

import psutil
import pytest

from tests.chaos.blow import Blow
from tests.chaos.conftest import HostFor
from tests.chaos.moment import Moment


@pytest.mark.parametrize("blow", Blow)
@pytest.mark.parametrize("moment", Moment)
def test_a_job_ends_once_whatever_happens_to_its_worker(host_for: HostFor, moment: Moment, blow: Blow) -> None:
    host = host_for(blow)
    host.up()
    process = moment.bring_about(host, host.add)

    worker = host.worker()
    blow.hit(worker)
    host.this.resume()
    if blow is Blow.SIGSTOP:
        host.outlast_lease()
        with suppress(psutil.NoSuchProcess):  # one that is idle is replaced if its node's lease was in doubt meanwhile
            worker.resume()

    host.up()
    began_twice = moment is Moment.RUNNING and blow is not Blow.SIGSTOP
    host.check(process, runs_at_most=2 if began_twice else 1)
