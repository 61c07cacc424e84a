"""Whether the processes that a lease names live on this host: by pid and time of birth, reaped or not."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone

import pytest

from taskqueue.insight import host
from taskqueue.model.record import Holder
from taskqueue.store import Lease

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """Return a process that lives until it is killed."""
    with subprocess.Popen(["sleep", "1000"]) as other:
        yield other
        other.kill()


def a_lease(processes: object, machine: str | None = None) -> Lease:
    about: Mapping[str, object] = {"machine": machine or host.machine(), "processes": processes}
    holder = Holder(seat="web-1", incarnation="first")
    return Lease(name="seat:web-1", holder=holder, since=NOW, until=NOW + timedelta(seconds=30), about=about)


def test_a_holder_lives_until_its_lease_or_its_last_process_ends(other: subprocess.Popen[bytes]) -> None:
    lease = a_lease(host.named({"node": other.pid}))
    assert host.is_live(lease, NOW)
    assert not host.is_live(lease, lease.until)

    other.kill()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # dead, and not reaped
    assert not host.is_live(lease, NOW)
    other.wait()
    assert not host.is_live(lease, NOW)


def test_another_process_of_the_same_number_is_not_the_holder(other: subprocess.Popen[bytes]) -> None:
    [[pid, born]] = host.named({"node": other.pid}).values()

    assert host.is_gone(a_lease({"node": [pid, born + 1]}))
    assert not host.is_gone(a_lease({"node": [pid, born + 1], "manager": [pid, born]}))


def test_a_process_whose_name_is_no_text_is_known_as_any_other() -> None:
    name = "import ctypes; ctypes.CDLL(None).prctl(15, bytes([0xD0, 0xFF]), 0, 0, 0)"  # a title in Cyrillic, cut off
    script = f"{name}; print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()

        assert host.born_at(process.pid)
        assert not host.is_stopped(process.pid)
        process.communicate("\n")


@pytest.mark.parametrize("processes", [None, {}, "nobody"])
def test_a_lease_that_names_no_process_is_not_known_to_be_gone(processes: object) -> None:
    assert not host.is_gone(a_lease(processes))


def test_processes_of_another_host_are_not_known_to_be_gone(other: subprocess.Popen[bytes]) -> None:
    [[pid, born]] = host.named({"node": other.pid}).values()

    assert not host.is_gone(a_lease({"node": [pid, born + 1]}, machine="elsewhere"))


def test_without_descriptors_no_process_counts_as_dead() -> None:
    lease = a_lease({"node": [os.getppid(), host.born_at(os.getppid())]})
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        answers = host.living(lease), host.is_gone(lease), host.is_live(lease, NOW)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

    assert answers == (None, False, True)
