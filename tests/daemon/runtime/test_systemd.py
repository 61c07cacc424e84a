"""What systemd is told, heard at the other end of a real notify socket."""

from __future__ import annotations

import logging
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from taskqueue.daemon.runtime import systemd


@pytest.fixture
def systemd_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield listener


def heard(listener: socket.socket) -> dict[str, str]:
    return dict(line.split("=", 1) for line in listener.recv(4096).decode().splitlines())


@pytest.mark.parametrize(
    ("say", "message"),
    [
        (lambda: systemd.ready("claims"), {"READY": "1", "STATUS": "claims"}),
        (lambda: systemd.stopping("2 jobs left"), {"STOPPING": "1", "STATUS": "2 jobs left"}),
        (lambda: systemd.show_status("3 busy, 1 idle"), {"STATUS": "3 busy, 1 idle"}),
        (systemd.alive, {"WATCHDOG": "1"}),
        (lambda: systemd.extend_timeout(2.5), {"EXTEND_TIMEOUT_USEC": "2500000"}),
    ],
    ids=["ready", "stopping", "status", "watchdog", "extend timeout"],
)
def test_each_message_is_what_systemd_reads(
    systemd_socket: socket.socket, say: Callable[[], None], message: dict[str, str]
) -> None:
    say()

    assert heard(systemd_socket) == message


def test_a_reload_says_on_the_monotonic_clock_when_it_began(systemd_socket: socket.socket) -> None:
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    systemd.reloading()
    message = heard(systemd_socket)

    assert message["RELOADING"] == "1"
    assert before <= int(message["MONOTONIC_USEC"]) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000


def test_a_status_cannot_smuggle_in_another_field(systemd_socket: socket.socket) -> None:
    systemd.show_status("waits\nMAINPID=1")

    assert heard(systemd_socket) == {"STATUS": "waits MAINPID=1"}


def test_an_abstract_socket_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"taskqueue-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("\0" + name)
        listener.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + name)

        systemd.show_status("here")

        assert heard(listener) == {"STATUS": "here"}


def test_without_systemd_nothing_is_said(
    systemd_socket: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET")
    systemd.ready("claims")

    with pytest.raises(BlockingIOError):
        heard(systemd_socket)
    assert caplog.messages == []


def test_a_socket_that_nobody_reads_is_logged_and_harmless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    systemd.ready("claims")

    assert "cannot notify systemd of READY, STATUS" in caplog.text


def test_a_full_socket_blocks_nobody(systemd_socket: socket.socket, caplog: pytest.LogCaptureFixture) -> None:
    while not caplog.messages:  # ends when the queue of the socket is full
        systemd.alive()

    assert "cannot notify systemd of WATCHDOG" in caplog.text


@pytest.mark.parametrize(
    ("environ", "interval"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "77"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "78"}, None),  # it watches our parent
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_is_fed_twice_in_the_time_it_allows(environ: dict[str, str], interval: float | None) -> None:
    assert systemd.watchdog_interval(environ, pid=77) == interval


def test_the_watchdog_of_this_very_process_is_fed() -> None:
    assert systemd.watchdog_interval({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": str(os.getpid())}) == 1.0


def test_a_want_of_descriptors_is_a_warning(systemd_socket: socket.socket, caplog: pytest.LogCaptureFixture) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        systemd.alive()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    [record] = caplog.records
    assert "Too many open files" in record.getMessage()
