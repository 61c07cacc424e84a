"""What a dead manager leaves behind is found by its mark and ended; what has a manager is left alone.

Every node of this host looks for what any dead manager left behind, those of other tests and other test runs, too: a
test whose process was ended by one of them begins again.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from taskqueue.daemon.runtime import leftovers
from taskqueue.daemon.runtime.child_process import Child, allow_signals, fork
from tests.chaos.process_fault import is_gone
from tests.nodes import eventually
from tests.store.children import in_child

LOCKS = 10
"""RLIMIT_LOCKS."""

Begin = Callable[[Callable[[], None]], tuple[Child, psutil.Process]]


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Return what starts a process in the way of a manager, which starts another in the given way."""
    with ExitStack() as stack:

        def begin(stray: Callable[[], None]) -> tuple[Child, psutil.Process]:
            reader, writer = os.pipe()

            def manage() -> None:
                leftovers.mark()
                if os.fork() == 0:
                    os.setsid()
                    os.write(writer, str(os.getpid()).encode())
                    stray()
                allow_signals()
                signal.pause()

            manager = fork(manage, name="manager", keep=[writer])
            os.close(writer)
            stack.callback(manager.close)
            stack.callback(kill, manager.pid)
            pid = int(os.read(reader, 32))
            os.close(reader)
            stack.callback(kill, pid)
            return manager, psutil.Process(pid)

        yield begin


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def forked() -> None:
    signal.pause()


def executed() -> None:
    os.execve("/usr/bin/env", ["env", "-i", "sleep", "1000"], {})


@pytest.mark.parametrize("stray", [forked, executed])
def test_what_a_dead_manager_left_behind_is_ended(begin: Begin, stray: Callable[[], None]) -> None:
    def is_counted() -> bool:
        manager, left = begin(stray)
        manager.signal(signal.SIGKILL)
        manager.reap()
        killed = leftovers.kill()
        assert is_gone(left)
        return killed is not None and killed > 0

    assert eventually(is_counted)


def test_what_has_a_manager_is_left_alone(begin: Begin) -> None:
    _, busy = begin(forked)

    leftovers.kill()

    assert not is_gone(busy)


def test_a_manager_that_is_dead_and_not_reaped_has_left_what_it_started(begin: Begin) -> None:
    manager, left = begin(forked)
    manager.signal(signal.SIGKILL)

    os.waitid(os.P_PID, manager.pid, os.WEXITED | os.WNOWAIT)
    leftovers.kill()

    assert is_gone(left)
    manager.reap()


@pytest.mark.parametrize("limit", [1, 1000, 2**40, 2**62])
def test_a_limit_that_somebody_set_is_no_mark(limit: int) -> None:
    with subprocess.Popen(["sleep", "1000"]) as bounded:
        resource.prlimit(bounded.pid, LOCKS, (limit, resource.RLIM_INFINITY))

        leftovers.kill()

        assert bounded.poll() is None
        bounded.kill()


def test_a_node_that_is_a_leftover_itself_does_not_end_itself(begin: Begin, tmp_path: Path) -> None:
    told = tmp_path / "told"

    def node() -> None:
        signal.sigwait({signal.SIGUSR1})
        leftovers.kill()
        told.touch()
        signal.pause()

    def survives() -> bool:
        manager, left = begin(node)
        manager.signal(signal.SIGKILL)
        manager.reap()
        with suppress(psutil.NoSuchProcess):
            left.send_signal(signal.SIGUSR1)
        eventually(lambda: told.exists() or is_gone(left))
        return told.exists()

    assert eventually(survives)


def test_a_host_that_allows_no_mark_is_warned_of() -> None:
    program = (
        f"import resource; resource.setrlimit({LOCKS}, (5, 5)); "
        "from taskqueue.daemon.runtime import leftovers; leftovers.mark()"
    )

    ended = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, check=True)

    assert "ulimit -x" in ended.stderr


def test_more_leftovers_than_free_descriptors_are_ended(begin: Begin) -> None:
    started = [begin(forked) for _ in range(4)]
    for manager, _ in started:
        manager.signal(signal.SIGKILL)
        manager.reap()

    def search() -> None:
        lowest = os.open(os.devnull, os.O_RDONLY)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 2, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        assert leftovers.kill() is not None

    in_child(search)

    assert all(is_gone(left) for _, left in started)
