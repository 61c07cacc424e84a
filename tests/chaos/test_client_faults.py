"""The fault matrix, clients: what has been added ends once, whatever happens to the application that added it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psutil
import pytest

from tests.chaos.blow import Blow
from tests.chaos.client import Client
from tests.chaos.conftest import HostFor
from tests.chaos.host import Host
from tests.chaos.moment import Moment


@pytest.fixture
def host(host_for: HostFor) -> Host:
    """Return a host whose lease is of no interest."""
    return host_for(Blow.SIGKILL)


@pytest.fixture
def client(host: Host) -> Iterator[Client]:
    """Return an application."""
    with closing(Client(host)) as client:
        yield client


@pytest.mark.parametrize("blow", Blow)
@pytest.mark.parametrize("moment", Moment)
def test_a_job_ends_once_whatever_happens_to_who_added_it(
    host: Host, client: Client, moment: Moment, blow: Blow
) -> None:
    host.up()
    process = moment.bring_about(host, client.add)

    this = psutil.Process(client.process.pid)
    blow.hit(this)
    host.this.resume()

    host.up()
    host.check(process, runs_at_most=1)
    if blow is Blow.SIGSTOP:
        this.resume()
        assert client.hear() == "DONE"
