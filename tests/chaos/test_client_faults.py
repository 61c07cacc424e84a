"""The fault matrix, clients: what has been added ends once, whatever happens to the application that added it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psutil
import pytest

from taskqueue import Scheduler
from tests.chaos.client import Client
from tests.chaos.conftest import HostFor
from tests.chaos.host import Host
from tests.chaos.moment import Moment
from tests.chaos.process_fault import ProcessFault


@pytest.fixture
def host(host_for: HostFor) -> Host:
    """Return a host whose lease is of no interest."""
    return host_for(ProcessFault.SIGKILL)


@pytest.fixture
def client(host: Host) -> Iterator[Client]:
    """Return an application."""
    with closing(Client(host.url, host.file, host.gate.path)) as client:
        yield client


@pytest.mark.parametrize("fault", ProcessFault)
@pytest.mark.parametrize("moment", Moment)
def test_a_job_ends_once_whatever_happens_to_who_added_it(
    host: Host, client: Client, moment: Moment, fault: ProcessFault
) -> None:
    host.up()
    process = moment.bring_about(host, lambda: host.scheduler.get_job(client.add()))

    this = psutil.Process(client.process.pid)
    fault.send(this)
    host.this.resume()

    host.up()
    host.check(process, runs_at_most=1)
    if fault is ProcessFault.SIGSTOP:
        this.resume()
        assert client.hear() == "DONE"


def test_every_job_that_was_acknowledged_is_there_after_its_application_was_killed(url: str) -> None:
    with closing(Client(url, "unused", "")) as client:
        client.add_on_and_on()
        acknowledged = [client.hear() for _ in range(30)]
        client.process.kill()
        while heard := client.hear():
            acknowledged.append(heard)

    with Scheduler(url) as scheduler:
        kept = [str(process.id) for process in scheduler.get_jobs()]
    assert set(acknowledged) <= set(kept)
    assert len(kept) - len(acknowledged) in (0, 1)
