"""Fork children that cannot get lost: exact deaths, death with the parent, nothing left behind.

A child is known by its pidfd, never by a bare pid, and it takes no descriptor along that it was not given.
"""

import contextlib
import functools
import logging
import os
import re
import select
import shlex
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from setproctitle import setproctitle

from taskqueue.daemon.runtime.child_setup import flush, live, prctl
from taskqueue.errors import ConfigError

log = logging.getLogger(__name__)

OLDEST_LINUX = (5, 4)
KILL_TAKES_AT_MOST = 0.5  # seconds that a sweep waits for what it killed

_PR_SET_CHILD_SUBREAPER = 36


class ForkUnsafe(RuntimeError):
    """Another Python thread runs: a fork would copy the locks that it holds, and nobody to release them."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(
            f"cannot fork while other Python threads run ({', '.join(names)}): "
            "start them after the fork, or do not import what starts them"
        )


class UnsupportedSystem(ConfigError):
    """This system lacks what the daemon is built on."""


@dataclass(frozen=True, kw_only=True)
class ChildExit:
    """How a process ended: by itself with ``code``, or by ``signal``; exactly one of the two is there.

    ``peak_memory`` is in bytes and includes the pages that were shared with the parent at the fork;
    ``user_time`` and ``system_time`` are seconds of CPU, with those of its own reaped children.
    """

    code: int | None
    signal: int | None
    peak_memory: int
    user_time: float
    system_time: float

    def __str__(self) -> str:
        if self.signal is not None:
            return f"killed by {_signal_name(self.signal)}"
        return f"exited with status {self.code}"


class Child:
    """A forked process; its descriptor becomes readable when it is dead."""

    def __init__(self, pid: int, name: str) -> None:
        self.pid = pid
        self.name = name
        self.pidfd = os.pidfd_open(pid)
        self._reaped = False

    def __repr__(self) -> str:
        return f"<Child {self.name!r} {self.pid}>"

    def fileno(self) -> int:
        return self.pidfd

    def signal(self, signum: int) -> None:
        """Send ``signum`` to this very process; nothing happens if it is gone."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signum)

    def signal_group(self, signum: int) -> None:
        """Send ``signum`` to the process and to everything in its process group."""
        if self._reaped:  # the number may by now belong to somebody else
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signum)

    def reap(self) -> ChildExit:
        """Kill what is left of its process group, release the dead process and say how it ended.

        Returns at once when the descriptor is readable, waits for the death otherwise.
        """
        _await_readable(self.pidfd, None)
        self.signal_group(signal.SIGKILL)  # before the wait: until then the number of the group is surely its own
        _, status, usage = os.wait4(self.pid, 0)
        self._reaped = True
        return ChildExit(
            code=os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
            signal=os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
            peak_memory=usage.ru_maxrss * 1024,
            user_time=usage.ru_utime,
            system_time=usage.ru_stime,
        )

    def close(self) -> None:
        """Let go of the descriptor; the process itself is not touched."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


def fork(
    main: Callable[[], int | None],
    *,
    name: str,
    keep: Collection[int] = (),
    death_signal: signal.Signals = signal.SIGKILL,
) -> Child:
    """Run ``main`` in a child that leads a process group of its own and gets ``death_signal`` when we die.

    The child has its standard streams and the descriptors in ``keep``; all others are replaced by /dev/null, so that
    closing them late does no harm. Its signals have their default actions and stay blocked until it calls
    ``allow_signals``. It leaves with what ``main`` returns, or with status 70 and a traceback when that raises.
    """

    def named() -> int | None:
        title(name)
        return main()

    _check_threads()
    flush()
    parent = os.getpid()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        pid = _fork()
        if pid == 0:
            live(named, keep=keep, parent=parent, death_signal=death_signal)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    with contextlib.suppress(PermissionError, ProcessLookupError):  # it was quicker and is gone
        os.setpgid(pid, pid)
    return Child(pid, name)


def allow_signals() -> None:
    """Let signals in, in a forked child: its own handlers are in place by now."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def become_subreaper() -> None:
    """Have orphans among our descendants handed to us instead of to process 1."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


def sweep(group: int, *, within: float = KILL_TAKES_AT_MOST) -> int:
    """Kill and reap those of our children that are in process group ``group``; return how many there were.

    For the parent of a reaped child: ``group`` is the pid of that child. What left the group is a stranger. It waits
    for deaths up to ``within`` seconds and logs what has not died by then.
    """
    return _kill_and_reap(lambda: [pid for pid in children() if os.getpgid(pid) == group], within)


def reap_strangers(known: Collection[int], *, within: float = KILL_TAKES_AT_MOST) -> int:
    """Kill and reap every child of ours whose pid is not ``known``; return how many there were.

    They are what children left behind, handed to us as subreaper; what they leave behind themselves follows. It waits
    for deaths up to ``within`` seconds and logs what has not died by then.
    """
    return _kill_and_reap(lambda: [pid for pid in children() if pid not in known], within)


def children() -> list[int]:
    """List the pids of our children, dead ones that were not reaped included."""
    listed: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a native thread that has ended
            listed.extend(int(pid) for pid in (task / "children").read_text().split())
    return listed


def ancestry(pid: int) -> list[int]:
    """List ``pid``, its parent, and so on; those that are there."""
    listed = []
    while pid > 0:
        try:
            parent = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1]
        except OSError:
            break
        listed.append(pid)
        pid = int(parent)
    return listed


def title(text: str) -> None:
    """Show ``text`` as what this process is, in ps and top."""
    setproctitle(f"taskqueue: {text}")


def show_arguments(arguments: Sequence[str]) -> None:
    """Show this command line as that of this process."""
    setproctitle(shlex.join(arguments))


def memory_of(pid: int) -> int:
    """Return the resident memory of process ``pid`` in bytes: 0 when there is no such process."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def boottime() -> float:
    """Return the seconds since the host was booted, those included in which it was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def require_linux(platform: str = sys.platform, release: str = os.uname().release) -> None:
    """Raise ``UnsupportedSystem`` where the daemon cannot run: it needs Linux 5.4 with pidfds."""
    if platform != "linux":
        raise UnsupportedSystem(f"the daemon runs on Linux {_dotted(OLDEST_LINUX)} or newer, this is {platform}")
    if _version(release) < OLDEST_LINUX:
        raise UnsupportedSystem(f"the daemon needs Linux {_dotted(OLDEST_LINUX)} or newer, this is {release}")
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        raise UnsupportedSystem(
            f"the daemon needs pidfds and this system refuses them ({error}): check the limit of open files "
            "and the seccomp profile of the container"
        ) from error


def _check_threads() -> None:
    others = [thread.name for thread in threading.enumerate() if thread is not threading.current_thread()]
    if others:
        raise ForkUnsafe(others)
    native = len(list(Path("/proc/self/task").iterdir())) - 1
    if native:
        _warn_of_native_threads(native)


@functools.cache  # once a process is enough
def _warn_of_native_threads(count: int) -> None:
    log.warning("forking beside %d native threads (of OpenBLAS, say): a lock that one of them holds stays held", count)


def _fork() -> int:
    with warnings.catch_warnings():  # Python 3.12 warns of native threads: we did
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _kill_and_reap(find: Callable[[], list[int]], within: float) -> int:
    """Kill and reap what ``find`` finds, again and again: each death may hand us the next ones."""
    ends_at = time.monotonic() + within
    reaped = 0
    while (found := find()) and time.monotonic() < ends_at:
        for pid in found:
            with contextlib.suppress(PermissionError):  # a program with set-user-id bit may be out of our reach
                os.kill(pid, signal.SIGKILL)
        _await_death(found[0], ends_at - time.monotonic())
        reaped += sum(os.waitpid(pid, os.WNOHANG)[0] == pid for pid in found)
    if found:
        log.warning("a child left processes behind that do not die: %s", found)
    return reaped


def _await_death(pid: int, timeout: float) -> None:
    """Wait up to ``timeout`` seconds until ``pid``, a child of ours, is dead."""
    pidfd = os.pidfd_open(pid)
    try:
        _await_readable(pidfd, timeout)
    finally:
        os.close(pidfd)


def _await_readable(descriptor: int, timeout: float | None) -> None:
    poll = select.poll()  # not select(), which ends at descriptor 1023
    poll.register(descriptor, select.POLLIN)
    poll.poll(None if timeout is None else max(0.0, timeout) * 1000)


def _signal_name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:  # between SIGRTMIN and SIGRTMAX
        return f"signal {signum}"


def _version(release: str) -> tuple[int, int]:
    major, minor = re.findall(r"\d+", release)[:2]
    return int(major), int(minor)


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
