"""The fault matrix, managers: whatever happens to the manager, its node leaves, and the job ends once on the next."""

from __future__ import annotations

import pytest

from taskqueue.daemon.exits import Exit
from tests.chaos.blow import Blow
from tests.chaos.conftest import HostFor
from tests.chaos.moment import Moment


@pytest.mark.parametrize("blow", Blow)
@pytest.mark.parametrize("moment", Moment)
def test_a_job_ends_once_whatever_happens_to_the_manager(host_for: HostFor, moment: Moment, blow: Blow) -> None:
    host = host_for(blow)
    host.up()
    process = moment.bring_about(host, host.add)

    blow.hit(host.manager())
    host.this.resume()
    assert host.down() == Exit.LOST

    host.up()
    host.check(process, runs_at_most=2 if moment is Moment.RUNNING else 1)
