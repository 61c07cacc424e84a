"""The fault matrix on hosts that have no processes left, or whose output nobody reads, and a storm without readers."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest

from taskqueue.exit_codes import Exit
from tests.chaos.fleet import Kind
from tests.chaos.host import Host
from tests.chaos.moment import Moment
from tests.chaos.outputs import full_pipe, still_reader
from tests.chaos.process_fault import ProcessFault
from tests.chaos.storm import Storm, StormSettings
from tests.chaos.test_shortage import bounded, no_processes

LEASE = 60.0


@dataclass(frozen=True, kw_only=True)
class ShortHost:
    """A host and what it is short of."""

    host: Host
    shortage: Callable[[int], AbstractContextManager[None]]
    """Gets the pid of the manager; there is a shortage in its context, too, if not all the time."""
    says: str
    """What the node reports if it cannot replace a worker; nothing if it can."""


@pytest.fixture(scope="module", params=["output", "processes"])
def short(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShortHost]:
    """Return a host whose nodes write to a full pipe, and one whose nodes can start no process for a while."""
    if request.param == "processes":
        with tempfile.TemporaryDirectory(prefix="tq-") as place:
            os.chmod(place, 0o755)  # the limit does not hold for root, and another user must see the bootstrap file
            url = f"sqlite://{place}/jobs.db"
            with closing(Host(url, Path(place), LEASE, wrapper=bounded())) as host:
                yield ShortHost(host=host, shortage=no_processes, says="no worker can be started")
        return
    folder = tmp_path_factory.mktemp("host")
    with full_pipe() as output, closing(Host(f"sqlite://{folder}/jobs.db", folder, LEASE, output)) as host:
        yield ShortHost(host=host, shortage=lambda _: nullcontext(), says="")


KILLED = [pytest.param(kind, moment, marks=() if moment is Moment.RUNNING else pytest.mark.long)
          for kind in Kind for moment in Moment]  # fmt: skip


@pytest.mark.parametrize(("kind", "moment"), KILLED)
def test_a_job_ends_once_whoever_is_killed_in_a_shortage(short: ShortHost, kind: Kind, moment: Moment) -> None:
    host = short.host
    started = host.up()
    process = moment.bring_about(host, host.add)

    killed = {Kind.WORKER: host.worker, Kind.MANAGER: host.manager}.get(kind)
    with short.shortage(host.manager().pid):
        ProcessFault.SIGKILL.send(host.this if killed is None else killed())
        if kind is not Kind.NODE:
            host.this.resume()
        if kind is not Kind.WORKER:
            assert host.down() == (Exit.LOST if kind is Kind.MANAGER else -signal.SIGKILL)
        else:
            started.heed(short.says)

    host.up()
    again = moment is Moment.RUNNING or (kind is Kind.NODE and moment is Moment.ENDED)
    host.check(process, runs_at_most=2 if again else 1)


@pytest.mark.parametrize("moment", [Moment.RUNNING, pytest.param(Moment.CLAIMED, marks=pytest.mark.long)])
def test_a_node_leaves_when_it_is_asked_in_a_shortage(short: ShortHost, moment: Moment) -> None:
    host = short.host
    host.up()
    process = moment.bring_about(host, host.add)

    with short.shortage(host.manager().pid):
        ProcessFault.SIGTERM.send(host.this)
        assert host.down() == Exit.OK

    host.up()
    host.check(process, runs_at_most=2 if moment is Moment.RUNNING else 1)


@pytest.mark.parametrize("output_of", [still_reader, full_pipe])
@pytest.mark.parametrize(("jobs", "kills"), [(30, 3), pytest.param(400, 40, marks=pytest.mark.long)])
def test_every_job_ends_once_in_a_storm_whose_output_nobody_reads(
    tmp_path: Path, jobs: int, kills: int, output_of: Callable[[], AbstractContextManager[int]]
) -> None:
    settings = StormSettings(jobs=jobs, kills=kills, seed=9)
    with (
        output_of() as output,
        closing(Storm(settings, f"sqlite://{tmp_path}/jobs.db", tmp_path, output=output)) as storm,
    ):
        report = storm.run()

    print(report.figures)
    assert report.complaints == []
