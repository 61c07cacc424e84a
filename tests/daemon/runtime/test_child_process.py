"""Forked children: what they inherit, how they end and what happens to what they leave behind."""

from __future__ import annotations

import _thread
import contextlib
import fcntl
import logging
import os
import random
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from taskqueue.daemon.runtime import child_process, child_setup
from taskqueue.daemon.runtime.child_process import Child, ForkUnsafe, UnsupportedSystem, fork
from tests.nodes import no_descriptors

MOST = 30.0  # seconds that any fact may take to come true
MIB = 1024 * 1024
NOBODY = 65534


class Fact:
    """A pipe through which a process says that something is so."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()

    def tell(self, text: str = "so it is") -> None:
        os.write(self.writer, text.encode() + b"\n")

    def hear(self) -> str:
        """Wait for one line, or for the end: of all processes that could tell."""
        line = b""
        while not line.endswith(b"\n"):
            poll = select.poll()
            poll.register(self.reader, select.POLLIN)
            assert poll.poll(MOST * 1000), "the fact did not come true"
            if not (byte := os.read(self.reader, 1)):
                break
            line += byte
        return line.decode().strip()

    def forget(self) -> None:
        """Close our end for telling, so that the end of all others can be heard."""
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1


@pytest.fixture
def fact() -> Iterator[Fact]:
    fact = Fact()
    yield fact
    fact.forget()
    os.close(fact.reader)


@pytest.fixture
def go() -> Iterator[Fact]:
    go = Fact()
    yield go
    go.forget()
    os.close(go.reader)


@pytest.fixture
def begin() -> Iterator[Callable[..., Child]]:
    """Fork children that are gone when the test is over."""
    begun: list[Child] = []

    def begin(main: Callable[[], int | None], *, name: str = "test", **options: object) -> Child:
        begun.append(fork(main, name=name, **options))  # type: ignore[arg-type]
        return begun[-1]

    yield begin
    for child in begun:
        if child.pidfd >= 0:
            child.signal(signal.SIGUSR2)  # ends those that block, once they let signals in
            with contextlib.suppress(ChildProcessError):
                child.reap()
            child.close()


Begin = Callable[..., Child]


def in_a_process(main: Callable[[], int | None], keep: Collection[int] = ()) -> int | None:
    """Run ``main`` in a process that may do what a test process should not, and return its exit status."""
    child = fork(main, name="stage", keep=keep)
    try:
        return child.reap().code
    finally:
        child.close()


def block() -> None:
    """Wait to be ended by a signal."""
    child_process.allow_signals()
    signal.pause()


# How a child ends.


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (3, 3)])
def test_a_child_leaves_with_what_its_main_returns(begin: Begin, returned: int | None, code: int) -> None:
    ended = begin(lambda: returned).reap()

    assert (ended.code, ended.signal) == (code, None)
    assert str(ended) == f"exited with status {code}"


def test_a_main_that_raises_ends_the_child_with_a_traceback(begin: Begin, capfd: pytest.CaptureFixture[str]) -> None:
    ended = begin(lambda: int("four")).reap()

    assert ended.code == child_setup.CRASHED
    assert "ValueError: invalid literal for int() with base 10: 'four'" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("signum", "text"), [(signal.SIGKILL, "killed by SIGKILL"), (signal.SIGRTMIN + 3, "killed by signal 37")]
)
def test_a_killed_child_tells_its_signal(begin: Begin, signum: int, text: str) -> None:
    def main() -> None:
        child_process.allow_signals()
        block()

    child = begin(main)
    child.signal(signum)
    ended = child.reap()

    assert (ended.code, ended.signal) == (None, signum)
    assert str(ended) == text


def test_the_descriptor_of_a_child_is_readable_when_it_is_dead_and_not_before(begin: Begin, go: Fact) -> None:
    def main() -> None:
        go.hear()

    child = begin(main, keep=[go.reader])
    poll = select.poll()
    poll.register(child, select.POLLIN)
    assert not poll.poll(0)

    go.tell()

    assert poll.poll(MOST * 1000) == [(child.pidfd, select.POLLIN)]
    assert child.reap().code == 0


def test_the_peak_memory_and_the_time_of_a_child_are_known(begin: Begin) -> None:
    def main() -> None:
        bytearray(b"x") * (96 * MIB)
        sum(range(300_000))

    ended = begin(main).reap()

    assert ended.peak_memory >= 96 * MIB
    assert ended.user_time + ended.system_time > 0


def test_signals_to_a_child_that_is_gone_do_nothing(begin: Begin) -> None:
    child = begin(lambda: None)
    child.reap()

    child.signal(signal.SIGTERM)
    child.kill_group()
    child.close()
    child.close()

    assert repr(child) == f"<Child 'test' {child.pid}>"


def test_a_child_that_left_its_process_group_is_reaped_like_any_other(begin: Begin) -> None:
    parents = os.getpgrp()

    def main() -> int:
        os.setpgid(0, parents)
        return 5

    assert begin(main).reap().code == 5


def test_a_child_that_left_its_process_group_is_killed_like_any_other(begin: Begin, fact: Fact) -> None:
    parents = os.getpgrp()

    def main() -> None:
        os.setpgid(0, parents)
        fact.tell()
        signal.pause()

    child = begin(main, keep=[fact.writer])
    fact.hear()
    child.kill_group()

    assert child.reap().signal == signal.SIGKILL


def test_a_child_that_has_become_another_user_is_left_to_root(
    fact: Fact, go: Fact, caplog: pytest.LogCaptureFixture
) -> None:
    if os.geteuid() != 0:
        return  # only root can become another user

    def main() -> None:
        os.setuid(NOBODY)
        fact.tell()
        go.hear()

    def stage() -> int:
        child = fork(main, name="worker", keep=[fact.writer, go.reader])
        fact.hear()
        os.setuid(NOBODY - 1)
        child.signal(signal.SIGTERM)
        child.kill_group()
        return sum(f"cannot signal worker {child.pid}" in record.getMessage() for record in caplog.records)

    assert in_a_process(stage, keep=[fact.reader, fact.writer, go.reader]) == 1


# What a child inherits.


def test_a_child_is_reaped_although_the_program_was_started_with_sigchld_ignored() -> None:
    def stage() -> int | None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        return fork(lambda: 5, name="test").reap().code

    assert in_a_process(stage) == 5


def test_a_child_leads_a_process_group_of_its_own(begin: Begin, fact: Fact) -> None:
    def main() -> None:
        fact.tell(str(os.getpgrp()))
        block()

    child = begin(main, keep=[fact.writer])

    assert os.getpgid(child.pid) == child.pid  # known to the parent from the first moment
    assert fact.hear() == str(child.pid)


def test_a_child_has_no_descriptors_but_those_it_was_given(begin: Begin, fact: Fact, go: Fact) -> None:
    def main() -> None:
        opened = child_setup.descriptors()
        kept = {number for number in opened if Path(f"/proc/self/fd/{number}").readlink() != Path(os.devnull)}
        fact.tell(str(fact.writer in kept and not kept & {fact.reader, go.reader, go.writer}))

    begin(main, keep=[fact.writer])

    assert fact.hear() == "True"


def test_a_descriptor_over_the_limit_of_open_files_is_closed_in_a_child(begin: Begin, fact: Fact) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    high = fcntl.fcntl(fact.reader, fcntl.F_DUPFD_CLOEXEC, soft // 2)
    resource.setrlimit(resource.RLIMIT_NOFILE, (high, hard))
    try:
        begin(lambda: fact.tell(str(high in child_setup.descriptors())), keep=[fact.writer])

        assert fact.hear() == "False"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(high)


def test_a_child_does_not_hide_the_end_of_its_siblings_channels(begin: Begin, fact: Fact, go: Fact) -> None:
    begin(block, keep=[go.reader])
    sibling = begin(lambda: None, keep=[fact.writer])
    begin(block, keep=[go.reader])
    sibling.reap()
    fact.forget()

    assert fact.hear() == ""  # the end of file, though two others were forked while it was open


def test_closing_late_what_was_inherited_does_not_close_a_file_of_the_child(
    begin: Begin, fact: Fact, tmp_path: Path
) -> None:
    inherited = socket.socket()

    def main() -> None:
        mine = (tmp_path / "mine").open("w", buffering=1)
        inherited.close()
        mine.write("intact\n")
        fact.tell((tmp_path / "mine").read_text().strip())
        mine.close()

    begin(main, keep=[fact.writer])
    inherited.close()

    assert fact.hear() == "intact"


def test_a_signal_in_a_child_does_not_wake_its_parent(begin: Begin) -> None:
    reader, writer = socket.socketpair()
    for end in (reader, writer):
        end.setblocking(False)
    before = signal.set_wakeup_fd(writer.fileno())

    def main() -> None:
        signal.signal(signal.SIGUSR1, lambda *_: None)
        child_process.allow_signals()
        signal.raise_signal(signal.SIGUSR1)

    try:
        assert begin(main, keep=[writer.fileno()]).reap().code == 0
        with pytest.raises(BlockingIOError):
            reader.recv(1)
    finally:
        signal.set_wakeup_fd(before)
        reader.close()
        writer.close()


def test_a_signal_that_comes_early_waits_for_the_childs_own_handlers(begin: Begin, fact: Fact, go: Fact) -> None:
    def main() -> None:
        go.hear()  # SIGTERM is here by now
        signal.signal(signal.SIGTERM, lambda *_: fact.tell("mine"))
        fact.tell("not yet")
        child_process.allow_signals()

    child = begin(main, keep=[fact.writer, go.reader])
    child.signal(signal.SIGTERM)
    go.tell()

    assert [fact.hear(), fact.hear()] == ["not yet", "mine"]
    assert child.reap().code == 0


def test_the_handlers_of_the_parent_are_gone_in_the_child_and_ignored_signals_stay_ignored(begin: Begin) -> None:
    before = signal.signal(signal.SIGUSR2, lambda *_: None)

    def main() -> int:
        mine = signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL
        return 0 if mine and signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN else 1

    try:
        assert begin(main).reap().code == 0
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_the_parent_has_its_signals_as_before_after_a_fork(begin: Begin) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    begin(lambda: None)

    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_every_child_has_chance_of_its_own(begin: Begin, fact: Fact) -> None:
    begin(lambda: fact.tell(str(random.random())), keep=[fact.writer])
    begin(lambda: fact.tell(str(random.random())), keep=[fact.writer])

    assert fact.hear() != fact.hear()


def test_text_that_was_printed_before_a_fork_is_written_once(begin: Begin, capfd: pytest.CaptureFixture[str]) -> None:
    print("once", end="")
    begin(lambda: None).reap()

    assert capfd.readouterr().out == "once"


def test_a_child_shows_its_name_and_can_change_it(begin: Begin, fact: Fact, go: Fact) -> None:
    def main() -> None:
        fact.tell()
        go.hear()
        child_process.title("worker MailJob 65f0")
        fact.tell()
        block()

    child = begin(main, name="worker idle", keep=[fact.writer, go.reader])
    command = Path(f"/proc/{child.pid}/cmdline")
    fact.hear()
    assert command.read_text().strip("\0") == "taskqueue: worker idle"

    go.tell()
    fact.hear()
    assert command.read_text().strip("\0") == "taskqueue: worker MailJob 65f0"


# Who may fork.


def test_a_fork_beside_another_python_thread_is_refused() -> None:
    done = threading.Event()
    other = threading.Thread(target=done.wait, name="driver")
    other.start()
    try:
        with pytest.raises(ForkUnsafe, match=r"other Python threads run \(driver\)"):
            fork(lambda: None, name="never")
    finally:
        done.set()
        other.join()


def test_a_fork_beside_native_threads_is_warned_of_once(begin: Begin, caplog: pytest.LogCaptureFixture) -> None:
    child_process._warn_of_native_threads.cache_clear()
    caplog.set_level(logging.WARNING)
    busy = _thread.allocate_lock()
    busy.acquire()
    started = _thread.allocate_lock()
    started.acquire()

    def run() -> None:
        started.release()
        busy.acquire()

    _thread.start_new_thread(run, ())  # Python's list of threads does not have it
    started.acquire()
    try:
        begin(lambda: None)
        begin(lambda: None)
    finally:
        busy.release()

    assert [message for message in caplog.messages if "native threads" in message] == caplog.messages[:1]


# Death with the parent.


def test_a_child_dies_with_its_parent(begin: Begin, fact: Fact) -> None:
    def worker() -> None:
        fact.tell()
        block()

    def manager() -> None:
        fork(worker, name="worker", keep=[fact.writer])
        block()

    parent = begin(manager, keep=[fact.writer])
    fact.hear()
    fact.forget()

    parent.signal(signal.SIGKILL)

    assert fact.hear() == ""  # nobody is left who could tell


def test_a_child_may_choose_the_signal_it_gets_when_its_parent_dies(begin: Begin, fact: Fact, go: Fact) -> None:
    def worker() -> None:
        fact.tell("ready")
        signal.sigwait([signal.SIGUSR1])
        fact.tell("orphaned")

    def manager() -> None:
        fork(worker, name="worker", keep=[fact.writer], death_signal=signal.SIGUSR1)
        go.hear()

    begin(manager, keep=[fact.writer, go.reader])
    assert fact.hear() == "ready"

    go.tell()

    assert fact.hear() == "orphaned"


def test_a_child_whose_parent_died_before_it_asked_gets_the_signal_too(begin: Begin, fact: Fact) -> None:
    def main() -> None:
        signal.signal(signal.SIGUSR1, lambda *_: fact.tell("late"))
        child_setup.die_with(os.getpid(), signal.SIGUSR1)  # surely not its parent
        fact.tell("in order")
        child_process.allow_signals()

    child = begin(main, keep=[fact.writer])

    assert [fact.hear(), fact.hear()] == ["in order", "late"]
    assert child.reap().code == 0


def test_a_refused_prctl_is_an_error() -> None:
    with pytest.raises(OSError, match=r"prctl\(1, 9999\): Invalid argument"):
        child_setup.prctl(1, 9999)


# What a child leaves behind.


def test_reaping_a_child_kills_what_is_left_in_its_process_group_and_a_sweep_reaps_it() -> None:
    def worker() -> None:
        subprocess.Popen(["sleep", "1000"], pass_fds=[])

    def manager() -> int:
        child_process.become_subreaper()
        child = fork(worker, name="worker")
        child.reap()
        return 0 if child_process.sweep(child.pid, within=MOST) == 1 and not child_process.children() else 1

    assert in_a_process(manager) == 0


def test_what_left_the_process_group_is_killed_and_reaped_with_its_children_and_known_ones_live() -> None:
    script = "import subprocess, sys; subprocess.Popen(['sleep', '1000']); print(flush=True); sys.stdin.read()"

    def worker() -> None:
        daemon = subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert daemon.stdout is not None
        daemon.stdout.readline()  # its own child runs
        os.set_inheritable(daemon.stdin.fileno(), True)  # type: ignore[union-attr]
        os._exit(0)

    def manager() -> int:
        child_process.become_subreaper()
        known = fork(block, name="known")
        child = fork(worker, name="worker")
        child.reap()
        swept = child_process.sweep(child.pid, within=MOST)
        strangers = child_process.reap_strangers([known.pid], within=MOST)
        return 0 if (swept, strangers, child_process.children()) == (0, 2, [known.pid]) else 1

    assert in_a_process(manager) == 0


def test_what_is_found_is_killed_without_time_and_logged_if_that_takes_any(caplog: pytest.LogCaptureFixture) -> None:
    everybody_else = set(child_process.children())
    stranger = subprocess.Popen(["sleep", "1000"])
    reaped = child_process.reap_strangers(everybody_else, within=0.0)

    assert reaped == 1 or f"still alive: pids [{stranger.pid}]" in caplog.text
    stranger.wait()  # it was killed


# What is known of a process and of the system.


def test_the_memory_of_a_process_is_known_and_nothing_when_it_is_gone(begin: Begin) -> None:
    child = begin(lambda: None)
    child.reap()

    assert child_process.memory_of(os.getpid()) > MIB
    assert child_process.memory_of(child.pid) == 0


@pytest.mark.parametrize(
    ("platform", "release"), [("darwin", "23.1.0"), ("linux", "5.3.18-150.el8"), ("linux", "4.19")]
)
def test_other_systems_are_refused_with_what_is_needed(platform: str, release: str) -> None:
    with pytest.raises(UnsupportedSystem, match=r"Linux 5\.4 or newer, this is"):
        child_process.require_linux(platform, release)


@pytest.mark.parametrize("release", ["5.4.0-generic", "6.1", "10.0.1+rpt"])
def test_linux_with_pidfds_is_fine(release: str) -> None:
    child_process.require_linux("linux", release)


def test_a_system_without_proc_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedSystem, match=f"needs {tmp_path}, which is not mounted here: mount -t proc"):
        child_process.require_linux(proc=tmp_path)


def test_a_system_that_refuses_pidfds_is_refused() -> None:
    def main() -> int:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        with pytest.raises(UnsupportedSystem, match="check the limit of open files and the seccomp profile"):
            child_process.require_linux()
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        return 0

    assert in_a_process(main) == 0


def test_a_child_that_cannot_be_watched_for_want_of_descriptors_is_not_left_alone() -> None:
    def main() -> int:
        pid = os.fork()
        if pid == 0:
            signal.pause()
        with no_descriptors(), pytest.raises(OSError, match="Too many open files"):
            Child(pid, "unseen")
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        return 0

    assert in_a_process(main) == 0


def test_a_want_of_descriptors_ends_no_process_that_looks_after_others() -> None:
    def main() -> int:
        with no_descriptors():
            with pytest.raises(OSError, match="Too many open files"):
                child_process.require_free_descriptors()
            return child_process.reap_strangers(()) + child_process.memory_of(os.getpid())

    assert in_a_process(main) == 0


def test_an_orphan_that_dies_in_a_want_of_descriptors_is_reaped_later() -> None:
    def main() -> int:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        with no_descriptors():
            child_process.reap_orphans(())
        assert child_process.children() == [pid]
        child_process.reap_orphans(())
        return len(child_process.children())

    assert in_a_process(main) == 0


def test_a_signal_for_the_main_thread_goes_to_no_other(begin: Begin, fact: Fact) -> None:
    """The kernel would give it to the other thread, in which it is not blocked, and that would end the process."""

    def main() -> None:
        other = threading.Thread(target=threading.Event().wait, daemon=True)
        child_process.allow_signals()
        other.start()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        fact.tell()
        fact.tell(signal.Signals(signal.sigwait({signal.SIGUSR1})).name)

    child = begin(main, keep=[fact.writer])
    fact.hear()

    child.signal_main_thread(signal.SIGUSR1)

    assert fact.hear() == "SIGUSR1"
    assert child.reap().code == 0
    child.signal_main_thread(signal.SIGUSR1)  # it is gone, and nothing happens


def test_a_main_thread_that_is_gone_cannot_be_signalled() -> None:
    with pytest.raises(ProcessLookupError, match="tgkill"):
        child_setup.kill_main_thread(2**22 + 1, signal.SIGUSR1)
