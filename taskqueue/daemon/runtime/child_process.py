"""Forks child processes, signals and reaps them by pidfd, and kills the processes that they leave running.

A child dies with its parent, and inherits only the descriptors that it was given.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import re
import resource
import shlex
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil
from setproctitle import setproctitle

from taskqueue.daemon.runtime.child_setup import flush, kill_main_thread, live, prctl
from taskqueue.errors import ConfigError
from taskqueue.insight import host
from taskqueue.model.shown_text import logged

log = logging.getLogger(__name__)

OLDEST_LINUX = (5, 4)
"""The first kernel with pidfds that can be waited for (``waitid``)."""

FEWEST_DESCRIPTORS = 64
"""The lowest limit of open files with which a node, its manager and a few workers can run; it holds per process."""

FREE_DESCRIPTORS = 24
"""Descriptors that must be free to start a worker: the ones it takes, and a reserve for its manager."""

KILL_TAKES_AT_MOST = 0.5
"""Seconds that a sweep waits for the processes it killed."""

CHILDREN_FOR = 5.0
"""Seconds that a process may outlive the job that started it; processes of ``multiprocessing`` may live longer."""

SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""The errors of a call that opens a file while this process or the host has no room for it."""

_TICKS, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


class ForkUnsafe(RuntimeError):
    """Another Python thread runs: a fork would copy the locks it holds, but not the thread that releases them."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(
            f"cannot fork while other Python threads run ({', '.join(names)}): "
            "start them after the fork, or do not import what starts them"
        )


class UnsupportedSystem(ConfigError):
    """This system lacks a feature that the daemon needs."""


@dataclass(frozen=True, kw_only=True)
class ChildExit:
    """How a process ended: with exit ``code``, or killed by ``signal``; exactly one of the two is set.

    ``peak_memory`` is in bytes and includes the pages that were shared with the parent at the fork;
    ``user_time`` and ``system_time`` are seconds of CPU, including its own reaped children.
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
    """A forked process; its descriptor becomes readable when the process is dead."""

    def __init__(self, pid: int, name: str) -> None:
        self.pid = pid
        self.name = name
        try:
            self.pidfd = os.pidfd_open(pid)
        except OSError:  # without a descriptor, the child could not be waited for
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        self._reaped = False
        self._is_out_of_reach = False

    def __repr__(self) -> str:
        return f"<Child {self.name!r} {self.pid}>"

    def fileno(self) -> int:
        return self.pidfd

    def signal(self, signum: int) -> None:
        """Send ``signum`` to this process; do nothing if it is dead."""
        with self._if_possible():
            signal.pidfd_send_signal(self.pidfd, signum)

    def signal_main_thread(self, signum: int) -> None:
        """Send ``signum`` to the main thread, as the kernel might choose another; do nothing if the process is dead."""
        if not self._reaped:  # the number may belong to another process by now
            with self._if_possible():
                kill_main_thread(self.pid, signum)

    def kill_group(self) -> None:
        """Kill the process, which may have left its process group, and all others in that group."""
        if self._reaped:  # the number may belong to another process by now
            return
        self.signal(signal.SIGKILL)
        with self._if_possible():
            os.killpg(self.pid, signal.SIGKILL)

    @contextlib.contextmanager
    def _if_possible(self) -> Iterator[None]:
        """Ignore that the process is dead; log it, once, if this user may not signal it."""
        try:
            yield
        except ProcessLookupError:
            pass
        except PermissionError as error:
            if not self._is_out_of_reach:
                self._is_out_of_reach = True
                log.error(
                    "cannot signal %s %d, which has changed its user (%s): end it as root, kill -KILL %d",
                    self.name,
                    self.pid,
                    error,
                    self.pid,
                )

    def reap(self) -> ChildExit:
        """Kill the rest of its process group, reap the process, and return how it ended.

        Return at once if the descriptor is readable, else wait for the process to die.
        """
        host.is_dead(self.pidfd, within=None)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # before wait4: until then the kernel cannot reuse the number
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
        """Close the descriptor; the process itself is not affected."""
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
    """Run ``main`` in a child that leads its own process group and gets ``death_signal`` when this process dies.

    The child keeps the standard streams and the descriptors in ``keep``; all others are replaced by /dev/null, so that
    closing them later is harmless. Its signals have their default actions and stay blocked until it calls
    ``allow_signals``. It exits with the value of ``main``, or with status 70 and a traceback if ``main`` raises.
    """

    def named() -> int | None:
        title(name)
        return main()

    _check_threads()
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # inherited: the kernel would reap the child itself
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
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
    with contextlib.suppress(PermissionError, ProcessLookupError):  # the child did it itself, or is dead
        os.setpgid(pid, pid)
    return Child(pid, name)


def allow_signals() -> None:
    """Unblock signals in a forked child that has installed its own handlers."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def become_subreaper() -> None:
    """Become the parent of orphaned descendants, instead of process 1."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _spare_none(_pid: int) -> bool:
    return False


def sweep(group: int, *, within: float = KILL_TAKES_AT_MOST) -> int:
    """Kill and reap the children of this process in process group ``group``; return their number.

    ``group`` is the pid of a child that has been reaped. Wait up to ``within`` seconds for the processes to die, and
    log survivors. ``reap_strangers`` handles processes that left the group.
    """
    return _kill_and_reap(lambda: [pid for pid in children() if os.getpgid(pid) == group], within)


def reap_strangers(
    known: Collection[int], *, spares: Callable[[int], bool] = _spare_none, within: float = KILL_TAKES_AT_MOST
) -> int:
    """Kill and reap every child of this process whose pid is not in ``known``; return their number.

    Such processes were left behind by children, and this process inherited them as subreaper. A process is spared if
    ``spares`` returns True for its pid. Wait up to ``within`` seconds for the others to die, and for any processes
    they leave behind, and log survivors.
    """
    return _kill_and_reap(lambda: [pid for pid in children() if pid not in known and not spares(pid)], within)


def reap_orphans(known: Collection[int]) -> None:
    """Reap the dead children whose pids are not in ``known``, as process 1 of a container must; never wait."""
    try:
        if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return
        pids = children()
    except OSError:  # this process has no children, or no free descriptor: the next call reaps them
        return
    for pid in pids:
        if pid not in known:
            os.waitpid(pid, os.WNOHANG)


def children(of: int | str = "self") -> list[int]:
    """Return the pids of the children of a process, by default this one, including dead ones not reaped yet.

    Raises ``OSError`` if no descriptor is free, so that they cannot be known.
    """
    pids: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the process has ended
        for task in Path(f"/proc/{of}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a native thread that has ended
                pids.extend(int(pid) for pid in (task / "children").read_text().split())
    return pids


def has_started_processes(pid: int) -> bool:
    """Return whether the process has children, or has waited for children that ended; see proc_pid_stat(5)."""
    _, stat = _stat(pid)
    return bool(stat) and (int(stat[8]) > 0 or bool(children(pid)))  # cminflt: a process that ran has had page faults


def described(pid: int) -> str:
    """Return the name of process ``pid`` and the pid itself, in words; empty if it is dead."""
    name, stat = _stat(pid)
    return f"{logged(name)}, pid {pid}" if stat and stat[0] not in "ZX" else ""


def ancestry(pid: int) -> list[int]:
    """Return ``pid`` and its ancestors, as far as /proc shows them."""
    pids = []
    while pid > 0:
        _, stat = _stat(pid)
        if not stat:
            break
        pids.append(pid)
        pid = int(stat[1])
    return pids


def is_stopped(pid: int) -> bool:
    """Return whether process ``pid`` is stopped (SIGSTOP), and has no terminal from which a user may continue it."""
    _, stat = _stat(pid)
    return bool(stat) and (stat[0], stat[4]) == ("T", "0")


def _stat(pid: int) -> tuple[str, list[str]]:
    """Return the name of process ``pid``, and its fields from the state on (proc_pid_stat(5)); none if it is gone."""
    try:
        name, _, fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")
    except OSError:
        return "", []
    return name.partition("(")[2], fields.split()


def title(text: str) -> None:
    """Set the title of this process, as shown by ps and top."""
    setproctitle(f"taskqueue: {text}")


def show_arguments(arguments: Sequence[str]) -> None:
    """Show these arguments as the command line of this process."""
    setproctitle(shlex.join(arguments))


class IoPriority:
    """The I/O priority of this process (``ionice``) as it was at first."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._first = self.present()

    def present(self) -> tuple[int, int] | None:
        """Return class and level, which only some classes have; None if a container forbids it."""
        try:
            ioclass, level = self._process.ionice()
        except (OSError, psutil.Error):
            return None
        has_level = ioclass in (psutil.IOPRIO_CLASS_RT, psutil.IOPRIO_CLASS_BE)
        return int(ioclass), int(level) if has_level else 0

    def set_back(self, present: tuple[int, int] | None) -> bool:
        """Set the first one if the current one is another; return whether it is set."""
        if present != self._first and self._first is not None:
            try:
                self._process.ionice(*self._first)
            except (OSError, psutil.Error):
                return False
        return True


class ProcessUse(NamedTuple):
    """What a process uses."""

    memory: int
    """Its resident memory in bytes, including pages that it shares with other processes."""
    cpu: float
    """The seconds of a processor that it has used."""
    of_children: float
    """The seconds of a processor that its children had used that have ended and that it has waited for."""
    age: float
    """The seconds since it was started."""


def use_of(pid: int) -> ProcessUse | None:
    """Return what process ``pid`` uses (proc_pid_stat(5)); None if there is no such process."""
    _, stat = _stat(pid)
    if not stat:
        return None
    used, of_children = ((int(stat[user]) + int(stat[user + 1])) / _TICKS for user in (11, 13))  # with the kernel's
    age = max(0.0, boottime() - int(stat[19]) / _TICKS)
    return ProcessUse(memory=int(stat[21]) * _PAGE, cpu=used, of_children=of_children, age=age)


def memory_of(pid: int) -> int:
    """Return the resident memory of process ``pid`` in bytes; 0 if there is no such process."""
    use = use_of(pid)
    return 0 if use is None else use.memory


def boottime() -> float:
    """Return the seconds since the host was booted, including the time it was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def require_descriptors() -> None:
    """Raise ``ConfigError`` if the limit of open files is too low for a node."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < FEWEST_DESCRIPTORS:
        raise ConfigError(
            f"the limit of open files is {soft}, and a node needs {FEWEST_DESCRIPTORS} at least: "
            "raise the limit: LimitNOFILE=16384 in the unit, or ulimit -n"
        )


def require_free_descriptors() -> None:
    """Raise ``OSError`` if too few descriptors are free to manage another child."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft - len(os.listdir("/proc/self/fd")) < FREE_DESCRIPTORS:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def require_linux(platform: str = sys.platform, release: str = os.uname().release, proc: Path = Path("/proc")) -> None:
    """Raise ``UnsupportedSystem`` if the daemon cannot run here: it needs Linux 5.4 with pidfds, and /proc."""
    if platform != "linux":
        raise UnsupportedSystem(f"the daemon runs on Linux {_dotted(OLDEST_LINUX)} or newer, this is {platform}")
    if _version(release) < OLDEST_LINUX:
        raise UnsupportedSystem(f"the daemon needs Linux {_dotted(OLDEST_LINUX)} or newer, this is {release}")
    if not (proc / "self/fd").is_dir():
        raise UnsupportedSystem(f"the daemon needs {proc}, which is not mounted here: mount -t proc proc {proc}")
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        raise UnsupportedSystem(
            f"the daemon needs pidfds and this system refuses them ({error}): check the limit of open files "
            "and the seccomp profile of the container"
        ) from error


def _check_threads() -> None:
    names = [thread.name for thread in threading.enumerate() if thread is not threading.current_thread()]
    if names:
        raise ForkUnsafe(names)
    native_count = len(list(Path("/proc/self/task").iterdir())) - 1
    if native_count:
        _warn_of_native_threads(native_count)


@functools.cache  # warn once per process
def _warn_of_native_threads(count: int) -> None:
    log.warning(
        "forking while %d native threads run (e.g. OpenBLAS): a lock held by one of them stays locked in the child",
        count,
    )


def _fork() -> int:
    with warnings.catch_warnings():  # Python 3.12 warns of native threads, and this module already has
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _kill_and_reap(find: Callable[[], list[int]], within: float) -> int:
    """Kill and reap the processes that ``find`` returns, until there are none: each death may orphan others.

    The first ones are killed even if this process was suspended for longer than it may wait for their deaths.
    """
    ends_at = time.monotonic() + within
    reaped, has_timed_out = 0, False
    pids: list[int] = []
    try:
        while (pids := find()) and not has_timed_out:
            for pid in pids:
                with contextlib.suppress(PermissionError):  # this process may not signal a set-user-id program
                    os.kill(pid, signal.SIGKILL)
            _await_death(pids[0], ends_at - time.monotonic())
            reaped += sum(os.waitpid(pid, os.WNOHANG)[0] == pid for pid in pids)
            has_timed_out = time.monotonic() >= ends_at
    except OSError as error:
        if error.errno not in SHORTAGES:
            raise
        log.warning("processes left behind by a dead child may live until the next child dies: %s", error)
        return reaped
    if pids:
        log.warning("processes left behind by a dead child are still alive: pids %s", pids)
    return reaped


def _await_death(pid: int, timeout: float) -> None:
    """Wait up to ``timeout`` seconds for the death of the child ``pid``."""
    pidfd = os.pidfd_open(pid)
    try:
        host.is_dead(pidfd, timeout)
    finally:
        os.close(pidfd)


def _signal_name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:  # a real-time signal has no name
        return f"signal {signum}"


def _version(release: str) -> tuple[int, int]:
    major, minor = re.findall(r"\d+", release)[:2]
    return int(major), int(minor)


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
