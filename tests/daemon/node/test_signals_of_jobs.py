"""Signals are read with the process that has sent them; in a child, as every thread must block them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Callable

from taskqueue.daemon.node.signals_of_jobs import Received, SignalFile, suspects
from taskqueue.daemon.runtime.child_process import has_started_processes
from tests.nodes import eventually, no_descriptors
from tests.store.children import in_child


def with_file(check: Callable[[SignalFile], None]) -> None:
    """Call the function in a child with a file of two blocked signals."""

    def blocked() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGQUIT])
        file = SignalFile([signal.SIGUSR1, signal.SIGQUIT])
        check(file)
        assert list(file.read()) == []
        file.close()

    in_child(blocked)


def check_senders(file: SignalFile) -> None:
    sender = os.fork()
    if sender == 0:
        os.kill(os.getppid(), signal.SIGUSR1)
        os._exit(0)
    os.waitpid(sender, 0)
    os.kill(os.getpid(), signal.SIGQUIT)

    assert select.select([file], [], [], 0)[0] == [file]
    user = os.getuid()
    assert sorted(file.read()) == [(signal.SIGQUIT, os.getpid(), user), (signal.SIGUSR1, sender, user)]


def check_silence(file: SignalFile) -> None:
    assert select.select([file], [], [], 0)[0] == []


def test_a_signal_has_its_sender() -> None:
    with_file(check_senders)


def test_nothing_waits_without_a_signal() -> None:
    with_file(check_silence)


def check_suspects(_file: SignalFile) -> None:
    sender = os.fork()
    if sender == 0:
        os._exit(0)
    os.waitpid(sender, 0)
    worker = subprocess.Popen(["sh", "-c", "true; sleep 1000 & wait"])
    eventually(lambda: has_started_processes(worker.pid))
    received = Received(signal.SIGTERM, sender, os.getuid())
    assert set(suspects(received, os.getpid())) == {worker.pid}

    with no_descriptors():
        assert suspects(received, os.getpid()) == {}

    worker.kill()
    worker.wait()


def test_a_stop_by_a_dead_sender_in_a_want_of_descriptors_has_no_suspects() -> None:
    with_file(check_suspects)
