"""Jobs for the tests of workers and managers; what they say goes to files or FIFOs that their data name.

They say that they run where an interruption is expected already: it may come before ``tell`` has returned.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import decimal
import gc
import io
import locale
import logging
import logging.config
import multiprocessing
import os
import re
import resource
import select
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import psutil

from taskqueue import ShellJob, task
from taskqueue.daemon.runtime import child_setup
from taskqueue.daemon.runtime.child_process import IoPriority
from taskqueue.execution import shell_job
from taskqueue.model.job import Fail, Interrupted, Job, Retry, Snooze


def tell(fifo: str, text: str = "so it is") -> None:
    """Tell the test a fact; returns when the test has opened the FIFO."""
    with Path(fifo).open("a") as stream:
        stream.write(f"{text}\n")


class Empty(Job):
    """Does nothing."""

    def start(self) -> None:
        pass


class OwnContext(Job):
    """Returns how many attributes the context of its run has of its own."""

    def start(self) -> int:
        """Count them."""
        return len(vars(self._context))


class Asked(Job):
    """Is asked whether it is ready, and is."""

    def is_ready(self) -> bool:
        return True

    def start(self) -> None:
        pass


class Echo(Job):
    """Returns its data, and what surrounds it."""

    def start(self) -> Any:
        return {
            "data": self.data,
            "state": self.state,
            "id": str(self.id),
            "attempt": self.attempt,
            "is_last": self.is_last_attempt,
            "key": self.key,
            "run_key": self.run_key,
            "stopping": self.stopping,
            "pid": os.getpid(),
        }


class Raising(Job):
    """Raises what its data says."""

    def start(self) -> None:
        match self.data["raise"]:
            case "value":
                raise ValueError("no such value")
            case "exit":
                sys.exit(3)
            case "keyboard":
                raise KeyboardInterrupt
            case "retry":
                raise Retry(7.0, "busy")
            case "fail":
                raise Fail("hopeless")
            case "snooze":
                raise Snooze(9.0)
            case "interrupted":
                raise Interrupted


class Huge(Job):
    """Returns more than is kept."""

    def start(self) -> str:
        return "x" * (2 * 1024 * 1024)


class Strange(Job):
    """Returns what cannot be kept."""

    def start(self) -> object:
        return object()


class Dying(Job):
    """Ends its worker."""

    def start(self) -> None:
        self.progress(40, "nearly there")
        if "exit" in self.data:
            os._exit(self.data["exit"])
        os.kill(os.getpid(), self.data["signal"])
        time.sleep(60)


class Blocking(Job):
    """Says that it runs, then waits until the test writes into its second FIFO."""

    def start(self) -> str:
        tell(self.data["runs"], str(os.getpid()))
        with Path(self.data["go"]).open() as stream:
            return stream.readline().strip()


class Patient(Job):
    """Says that it runs, and how it was asked to end."""

    def start(self) -> None:
        try:
            tell(self.data["runs"], str(os.getpid()))
            signal.pause()
        except Interrupted as interrupted:
            self.checkpoint({"seen": interrupted.reason, "kind": type(interrupted).__name__})
            raise


class Swallowing(Job):
    """Returns as if nothing had been when it is asked to end."""

    def start(self) -> str:
        try:
            tell(self.data["runs"])
            signal.pause()
        except Interrupted:
            return "done all the same"
        return "never"


class Converting(Job):
    """Raises something else when it is asked to end."""

    def start(self) -> None:
        try:
            tell(self.data["runs"])
            signal.pause()
        except Interrupted:
            raise RuntimeError("could not clean up") from None


class Watching(Job):
    """Ends by itself as soon as it is asked to."""

    def start(self) -> str:
        tell(self.data["runs"])
        while not self.stopping:
            time.sleep(0.01)
        times: int = self.data.get("times", 1)
        return "ended by itself" * times


class Deaf(Job):
    """Swallows the first interruptions, as ``__del__`` would, and obeys the third."""

    def start(self) -> int:
        heard = 0
        while heard < 2:
            try:
                tell(self.data["runs"])
                signal.pause()
            except Interrupted:
                heard += 1
        signal.pause()
        return heard


class Looping(Job):
    """The first hostile job: swallows what it is asked and goes on for ever, perhaps in another process group."""

    def start(self) -> None:
        os.setpgid(0, self.data.get("group", 0))
        while True:
            try:
                tell(self.data["runs"])
                while True:
                    pass
            except Interrupted:
                pass


class InC(Job):
    """The second hostile job: sleeps in C for ever and holds the interpreter; a signal does not wake it."""

    def start(self) -> None:
        mutex = ctypes.create_string_buffer(128)
        lock = ctypes.PyDLL(None).pthread_mutex_lock
        lock(mutex)
        tell(self.data["runs"])
        lock(mutex)


class Matching(Job):
    """The third hostile job: a regular expression that takes longer than the universe."""

    def start(self) -> None:
        tell(self.data["runs"])
        re.match(r"(a+)+$", "a" * 64 + "b")


class WithChildren(Job):
    """The fourth hostile job: its children ignore SIGTERM, one of them in a session of its own."""

    def start(self) -> None:
        program = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"
        children = [
            subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=new_session)
            for new_session in (False, True)
        ]
        for child in children:
            assert child.stdout is not None
            child.stdout.readline()
        tell(self.data["runs"], " ".join(str(child.pid) for child in children))
        for child in children:
            child.wait()


class Saving(Job):
    """Checkpoints, then dies."""

    def start(self) -> None:
        self.checkpoint({"done": 5, "padding": "x" * self.data.get("padding", 0)})
        os.kill(os.getpid(), signal.SIGKILL)


class Refused(Job):
    """Tries to keep and to tell what cannot be."""

    def start(self) -> list[str]:
        refused = []
        attempts: list[Callable[[], None]] = [
            lambda: self.checkpoint(object()),
            lambda: self.progress(101),
            lambda: self.progress(-1),
            lambda: self.progress(float("nan")),
            lambda: self.progress(True),
        ]
        for attempt in attempts:
            try:
                attempt()
            except Exception as error:
                refused.append(type(error).__name__)
        return refused


class Progressing(Job):
    """Tells much progress at once, and then waits."""

    def start(self) -> None:
        for percent in range(51):
            self.progress(percent, f"step {percent}")
        if self.data is not None:
            tell(self.data["runs"])
            with Path(self.data["go"]).open() as stream:
                stream.readline()


class Chattering(Job):
    """Tells progress again and again for longer than a second, and returns how long that was."""

    def start(self) -> float:
        began = time.monotonic()
        while (took := time.monotonic() - began) < 1.2:
            self.progress(50 + took)
        return time.monotonic() - began


class HeldUp(Job):
    """Stops itself after progress that only its page has, three times, and returns how long it took."""

    def start(self) -> float:
        began = time.monotonic()
        for stop in (1, 2, 3):
            for step in range(10):
                self.progress(10 * stop + step)
            os.kill(os.getpid(), signal.SIGSTOP)
        self.progress(100)
        return time.monotonic() - began


class Striding(Job):
    """Finishes an item after each pause of ``data["pauses"]``, and then waits."""

    def start(self) -> None:
        for pause in self.each([*self.data["pauses"], None]):
            if pause is None:
                with Path(self.data["go"]).open() as stream:
                    stream.readline()
            else:
                time.sleep(pause)


class Hooked(Job):
    """Writes down which of its hooks are called."""

    def start(self) -> None:
        self.told: Path = Path(self.data["file"])
        if self.data.get("fail"):
            raise ValueError("as asked")
        if "runs" in self.data:
            tell(self.data["runs"])
            signal.pause()

    def on_success(self) -> None:
        self._note("success")
        if self.data.get("hook") == "raises":
            raise RuntimeError("a hook fails")
        if self.data.get("hook") == "hangs":
            tell(self.data["told"])
            signal.pause()
        if self.data.get("hook") == "dies":
            os.kill(os.getpid(), signal.SIGKILL)

    def on_failure(self, error: Exception) -> None:
        self._note(f"failure {type(error).__name__}")

    def on_last_failure(self, error: Exception) -> None:
        self._note(f"last failure {type(error).__name__}")

    def finalize(self) -> None:
        self._note(f"finalize {self.id}")
        if "told" in self.data:
            tell(self.data["told"])

    def _note(self, text: str) -> None:
        with Path(self.data["file"]).open("a") as stream:
            stream.write(f"{text}\n")


class Hoarding(Job):
    """Keeps memory after its end."""

    kept: list[bytes] = []  # noqa: RUF012

    def start(self) -> int:
        self.kept.append(b"x" * self.data["bytes"])
        return os.getpid()


class Forking(Job):
    """Comes back from ``start`` twice."""

    def start(self) -> int:
        return os.fork()


class Terminating(Job):
    """Ends a child of its own by SIGTERM, as ``multiprocessing`` does."""

    def start(self) -> int:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(writer, b"x")
            signal.pause()
        os.read(reader, 1)
        os.kill(pid, signal.SIGTERM)
        _, status = os.waitpid(pid, 0)
        return os.WTERMSIG(status)


class Logging(Job):
    """Logs a line."""

    def start(self) -> None:
        self.log.warning("it is %s", "so")


class Turning(Job):
    """Is short, as a rule."""

    def start(self) -> None:
        if self.data is None:
            return
        if "dies" in self.data:
            os.kill(os.getpid(), signal.SIGKILL)
        tell(self.data["runs"])
        signal.pause()


class Closing(Job):
    """Closes what is not its own, as programs do that make themselves daemons."""

    def start(self) -> None:
        os.closerange(3, 1000)


class Scribbling(Job):
    """Writes to, or reads from, descriptors that are not its own, and goes on until it is told to end."""

    def start(self) -> str:
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                kind = stat.S_IFMT(os.stat(int(name)).st_mode)
                if int(name) > 2 and "write" in self.data and kind == stat.S_IFSOCK:
                    os.write(int(name), self.data["write"].encode())
                if int(name) > 2 and "read" in self.data and kind == getattr(stat, self.data["read"]):
                    os.read(int(name), 65536)
        if "runs" not in self.data:
            return "as if nothing had been"
        tell(self.data["runs"])
        with Path(self.data["go"]).open() as stream:
            return stream.readline().strip()


class Robbing(Job):
    """Leaves a process behind that reads the next run in place of the worker, and says so."""

    def start(self) -> int:
        multiprocessing.get_context("fork").Process(target=rob, args=(self.data,), daemon=True).start()
        return os.getpid()


def rob(fifo: str) -> None:
    """Read the sockets of the process that this one was forked from until that is a run."""
    sockets = []
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # the folder's own, which is closed by now
            if number > 2 and stat.S_ISSOCK(os.stat(number).st_mode):
                sockets.append(number)
    while True:
        for ready in select.select(sockets, [], [])[0]:
            if b"Run" in os.read(ready, 65536):
                tell(fifo)
                return


class Deafening(Job):
    """Takes a signal for itself and leaves it so."""

    def start(self) -> int:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return os.getpid()


class Telling(Job):
    """Is nearly always in the middle of telling something."""

    def start(self) -> None:
        while True:
            self.progress(50, "x" * 400)
            self.checkpoint("x" * 10_000)


class Threading(Job):
    """Leaves a thread behind that tells progress when the job has ended."""

    def start(self) -> None:
        threading.Thread(target=self._go_on, daemon=True).start()

    def _go_on(self) -> None:
        with Path(self.data["go"]).open() as stream:
            stream.readline()
        try:
            self.progress(99)
        except RuntimeError as error:
            written = Path(self.data["file"] + ".new")
            written.write_text(str(error))
            written.rename(self.data["file"])


class Speaking(Job):
    """Has a child that tells progress."""

    def start(self) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                self.progress(50)
            except RuntimeError:
                os._exit(17)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Adding(Job):
    """Adds another job."""

    def start(self) -> str:
        assert self.scheduler is self.scheduler
        return str(self.scheduler.add_job("tests.daemon.jobs:Empty").id)


class Service:
    """Not a job, but has a method that does work."""

    def add(self, left: int, right: int) -> int:
        return left + right

    def double(self, number: int) -> int:
        return 2 * number

    def nothing(self) -> str:
        return "nothing"


@task(retry=2)
def multiply(left: int, right: int) -> int:
    """A function that is a job."""
    return left * right


not_a_job = 5


@task
def environment() -> dict[str, str]:
    """Return the variables of the worker."""
    return dict(os.environ)


class Leaving(Job):
    """Leaves behind what its data name, and returns what it has found."""

    kept: list[object] = []  # noqa: RUF012

    def start(self) -> dict[str, Any]:
        mask = os.umask(0o022)
        os.umask(mask)
        found = {
            "pid": os.getpid(),
            "folder": os.getcwd(),
            "mask": mask,
            "alarm": signal.getitimer(signal.ITIMER_REAL)[0],
            "child": str(signal.getsignal(signal.SIGCHLD)),
            "blocked": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))),
            "limits": [resource.getrlimit(number) for number in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE)],
        }
        what = self.data or {}
        for _ in range(what.get("descriptors", 0)):
            self.kept.append(os.open("/dev/null", os.O_RDONLY))
        for _ in range(what.get("threads", 0)):
            threading.Thread(target=threading.Event().wait, daemon=True).start()
        if "spins" in what:
            threading.Thread(target=_spin, name="spins", daemon=True).start()
        if "command" in what:
            self.kept.append(subprocess.Popen(what["command"]))
        if "folder" in what:
            os.chdir(what["folder"])
            os.umask(0o077)
            signal.setitimer(signal.ITIMER_REAL, 3600)
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGUSR1))
        for name, soft in what.get("limits", {}).items():
            number = getattr(resource, name)
            resource.setrlimit(number, (soft, soft if "for_good" in what else resource.getrlimit(number)[1]))
        if "for_good" in what:  # root could raise them again
            header = (ctypes.c_uint32 * 2)(0x20080522, 0)
            ctypes.CDLL(None).capset(header, (ctypes.c_uint32 * 6)())
        if "database" in what:
            raw = sqlite3.connect(what["database"], isolation_level=None)
            raw.execute("BEGIN IMMEDIATE")
            if what.get("keeps", True):
                self.kept.append(raw)
        if "fails" in what:
            raise ValueError("as asked")
        return found


def _spin() -> None:
    while True:
        pass


def arm_timer(seconds: int) -> None:
    """Have the C library end this process by SIGALRM after that time."""
    library, timer = ctypes.CDLL(None), ctypes.c_void_p()
    assert library.timer_create(time.CLOCK_MONOTONIC, None, ctypes.byref(timer)) == 0
    assert library.timer_settime(timer, 0, (ctypes.c_long * 4)(0, 0, seconds, 0), None) == 0


class LoggingInThreads(Job):
    """Logs from a thread, from a pool of threads that was made by an earlier run, and from a library."""

    def start(self) -> None:
        thread = threading.Thread(target=_log, args=("thread",), daemon=True)
        thread.start()
        thread.join()
        _POOL.submit(_log, "pool").result()
        _log("library")


_POOL = ThreadPoolExecutor(1)


def _log(text: str) -> None:
    logging.getLogger("library").warning(text, extra={"queue": "of the caller"})


class LoggingMuch(Job):
    """Logs ``count`` lines of ``size`` characters by ``logging``, then ends as ``end`` says."""

    def start(self) -> None:
        log = logging.getLogger("library")
        for number in range(self.data["count"]):
            log.warning("%d %s", number + 1, "x" * self.data.get("size", 0))
        if self.data.get("fifo"):
            tell(self.data["fifo"])
            Path(self.data["fifo"]).open().close()
        match self.data.get("end"):
            case "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            case "segfault":
                ctypes.string_at(0)
            case "error":
                log.error("it is over", exc_info=ValueError("no such address"))
            case "children":
                child = os.fork()
                if not child:
                    log.warning("of the child")
                    os._exit(0)
                os.waitpid(child, 0)


class Printing(Job):
    """Prints."""

    def start(self) -> None:
        print("one", "two")
        print("and mongodb://ann:secret@host/x", file=sys.stderr)
        print("unended \x1b[2J", end="")


class ConfiguringLogging(Job):
    """Configures logging anew, which removes every handler."""

    def start(self) -> None:
        logging.basicConfig(force=True)


class Threaded(Job):
    """Has a thread that waits, and waits for it."""

    def start(self) -> None:
        waits = threading.Thread(target=self._wait, name="waits", daemon=True)
        waits.start()
        waits.join()

    def _wait(self) -> None:
        tell(self.data["runs"])
        threading.Event().wait()


class Awaiting(Job):
    """Awaits what never comes, in one task within another."""

    async def start(self) -> None:
        inner = asyncio.create_task(self._inner(), name="inner")
        await asyncio.wait([inner])

    async def _inner(self) -> None:
        tell(self.data["runs"])
        secret = "of this value nothing is shown"  # noqa: F841
        await asyncio.Event().wait()


class Deep(Job):
    """Waits, far down, and does not end."""

    def start(self) -> None:
        self._descend(300)

    def _descend(self, levels: int) -> None:
        if levels:
            self._descend(levels - 1)
        tell(self.data["runs"])
        while True:
            with contextlib.suppress(Interrupted):
                threading.Event().wait()


def orphan(seconds: float = 0.0) -> int:
    """Leave a process behind whose parent has ended, and return its pid."""
    begun = subprocess.run(
        ["sh", "-c", f"sleep {seconds} > /dev/null & echo $!"],
        stdout=subprocess.PIPE,
        check=True,
        start_new_session=True,
    )
    return int(begun.stdout)


def await_line(fifo: str) -> None:
    """Wait until the test writes a line."""
    with Path(fifo).open() as stream:
        stream.readline()


def await_end(pid: int) -> None:
    """Wait until there is no such process, not even a dead one."""
    while Path(f"/proc/{pid}").exists():
        time.sleep(0.01)


class SlowStart(ShellJob):
    """Runs a command whose start is not over before the job is asked to end."""

    def start(self) -> dict[str, Any]:
        shell_job._dying_with_us()  # it runs a program once
        with starting_slowly(self):
            return super().start()


class SlowDelivery(Job):
    """Sends a message by a command whose start is not over before the job is asked to end."""

    def start(self) -> None:
        from taskqueue.notifications.program import program_of
        from tests.notifications.receivers import MESSAGE

        with starting_slowly(self):
            program_of(self.data, self._running.uninterrupted).send(MESSAGE, os.environ)


@contextlib.contextmanager
def starting_slowly(job: Job) -> Iterator[None]:
    """Have the start of each command in the block last until the job is asked to end."""
    execute_child: Any = subprocess.Popen._execute_child  # type: ignore[attr-defined]

    def execute_slowly(*arguments: Any) -> None:
        execute_child(*arguments)
        while not job.stopping:
            time.sleep(0.01)

    subprocess.Popen._execute_child = execute_slowly  # type: ignore[attr-defined]
    try:
        yield
    finally:
        subprocess.Popen._execute_child = execute_child  # type: ignore[attr-defined]


class Orphaning(Job):
    """Leaves orphans behind, and waits for its ``go`` if it has one; returns their pids."""

    def start(self) -> list[int]:
        left = [orphan(self.data.get("seconds", 0)) for _ in range(self.data.get("count", 1))]
        if "go" in self.data:
            tell(self.data["runs"], " ".join(map(str, left)))
            await_line(self.data["go"])
        return left


class Changing(Job):
    """Changes an attribute of its process for good; if it is not root, those that a namespace of its own changes."""

    def start(self) -> None:
        what = self.data
        if what == "to fail":
            raise OSError("the network is unreachable")
        if what == "timers":
            arm_timer(3600)
        elif os.geteuid() != 0:
            assert ctypes.CDLL(None).unshare(0x10000000) == 0, "CLONE_NEWUSER"
        elif what == "user":
            os.setuid(65534)
        elif what == "effective user":
            os.seteuid(65534)
        elif what == "effective group":
            os.setegid(65534)
        elif what == "root folder":
            os.chroot("/proc")
        elif what == "namespace":
            assert ctypes.CDLL(None).unshare(0x04000000) == 0, "CLONE_NEWUTS"
        elif what == "process group":
            os.setpgid(0, os.getpgid(os.getppid()))
        elif what == "new privileges":
            assert ctypes.CDLL(None).prctl(38, 1, 0, 0, 0) == 0, "PR_SET_NO_NEW_PRIVS"


REQUEST: ContextVar[str] = ContextVar("REQUEST", default="")


def signal_at_death_of_parent() -> int:
    """Return the number of the signal that this process gets when its parent dies; 0 for none."""
    number = ctypes.c_int()
    ctypes.CDLL(None).prctl(2, ctypes.byref(number), 0, 0, 0)  # PR_GET_PDEATHSIG of linux/prctl.h
    return number.value


class Surroundings(Job):
    """Returns what it inherits, and changes what its data name, which can be set back."""

    def start(self) -> dict[str, Any]:
        found = {
            "pid": os.getpid(),
            "nice": os.getpriority(os.PRIO_PROCESS, 0),
            "scheduler": os.sched_getscheduler(0),
            "io priority": IoPriority().present(),
            "oom_score_adj": Path("/proc/self/oom_score_adj").read_text(),
            "processors": sorted(os.sched_getaffinity(0)),
            "limits": [resource.getrlimit(number) for number in range(16)],
            "handlers": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGWINCH, signal.SIGTTIN)],
            "timers": [signal.getitimer(timer)[0] for timer in (signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)],
            "settings": [gc.isenabled(), logging.root.manager.disable, locale.setlocale(locale.LC_ALL)],
            "garbage collection": [gc.get_threshold(), gc.get_debug()],
            "start method": multiprocessing.get_start_method(),
            "parent's death": signal_at_death_of_parent(),
            "path": [*sys.path],
            "root logger": [logging.root.level, *map(str, logging.root.handlers)],
            "filters of warnings": list(map(str, warnings.filters)),
            "more settings": [sys.getrecursionlimit(), sys.getswitchinterval(), socket.getdefaulttimeout()],
            "context": [str(decimal.Decimal(1) / 3), REQUEST.get()],
            "threads": (stack_size := threading.stack_size()),
            "tracebacks": getattr(sys, "tracebacklimit", None),
            "loggers": [logging.getLogger(name).disabled for name in ("taskqueue", "tests", "tests.daemon", __name__)],
            "hooks": [str(hook) for hook in (sys.excepthook, sys.unraisablehook, threading.excepthook)],
            "mask": (mask := os.umask(0o022)),
            "encodings": [(stream.encoding, stream.errors) for stream in (sys.stdout, sys.stderr)],
            "streams": [type(stream).__name__ for stream in (sys.stdin, sys.stdout, sys.stderr)],
            "descriptors": [[*os.fstat(number)[:3], os.get_blocking(number)] for number in range(3)],
        }
        threading.stack_size(stack_size)
        os.umask(mask)
        print("printed", flush=True)
        sys.stderr.write("")
        if self.data == "oom_score_adj":
            Path("/proc/self/oom_score_adj").write_text("500")
        elif self.data == "scheduler":
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        elif self.data == "io priority":
            psutil.Process().ionice(psutil.IOPRIO_CLASS_BE, 7)  # no test run has that one
        elif self.data == "processors":
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        elif self.data == "limits":
            for number in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_MEMLOCK, 10):
                resource.setrlimit(number, (0, resource.getrlimit(number)[1]))
        elif self.data == "handlers":
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGWINCH, signal.SIG_IGN)
            signal.signal(signal.SIGTTIN, signal.default_int_handler)
        elif self.data == "timers":
            signal.setitimer(signal.ITIMER_VIRTUAL, 3600)
            signal.setitimer(signal.ITIMER_PROF, 3600)
        else:
            self._change_python(self.data)
        return found

    def _change_python(self, what: str | None) -> None:
        if what == "settings":
            gc.disable()
            logging.disable()
            locale.setlocale(locale.LC_ALL, "C" if locale.setlocale(locale.LC_ALL) != "C" else "C.UTF-8")
            sys.setrecursionlimit(sys.getrecursionlimit() + 1)
            sys.setswitchinterval(1)
            socket.setdefaulttimeout(0.001)
            gc.set_threshold(0)
            gc.set_debug(gc.DEBUG_UNCOLLECTABLE)
            threading.stack_size(1 << 20)
            sys.tracebacklimit = 0
        elif what == "mask":
            os.umask(0o077)
        elif what == "loggers":
            logging.config.dictConfig({"version": 1})
        elif what == "hooks":
            sys.excepthook = sys.unraisablehook = threading.excepthook = print
        elif what == "start method":
            multiprocessing.set_start_method("spawn", force=True)
        elif what == "path":
            sys.path.insert(0, "/nowhere")
        elif what == "root logger":
            logging.basicConfig(level=logging.CRITICAL, stream=io.StringIO(), force=True)
        elif what == "filters of warnings":
            warnings.simplefilter("error")
        elif what == "parent's death":
            child_setup.prctl(child_setup.PR_SET_PDEATHSIG, 0)
        elif what == "context":
            decimal.getcontext().prec = 3
            REQUEST.set("of another user")
        else:
            self._change_streams(what)

    def _change_streams(self, what: str | None) -> None:
        if what == "replaced streams":
            sys.stdin = sys.stdout = sys.stderr = io.StringIO()
        elif what == "closed streams":
            for stream in (sys.stdin, sys.stdout, sys.stderr):
                stream.close()
        elif what == "detached streams":
            assert isinstance(sys.stdout, io.TextIOWrapper)
            sys.stdout.detach()
        elif what == "encodings":
            for stream in (sys.stdout, sys.stderr):
                assert isinstance(stream, io.TextIOWrapper)
                stream.reconfigure(encoding="ascii", errors="strict")
        elif what == "closed descriptors":
            os.closerange(0, 3)
        elif what == "other files":
            with open("/dev/null", "r+b", buffering=0) as null:
                for number in range(3):
                    os.dup2(null.fileno(), number)
        elif what == "descriptors that do not block":
            for number in range(3):
                os.set_blocking(number, False)


class Looped(Job):
    """Does with asyncio what its data name; plain, it returns whether the current loop can be used."""

    loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> bool:
        if self.data == "run":
            asyncio.run(asyncio.sleep(0))
            return True
        if self.data == "policy":
            asyncio.set_event_loop_policy(NoLoops())
            return True
        if self.data == "running":
            asyncio._set_running_loop(asyncio.new_event_loop())
            return True
        if self.data == "stop":
            assert Looped.loop is not None
            Looped.loop.stop()
            return True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            loop = asyncio.get_event_loop()
        loop.run_until_complete(asyncio.sleep(0))
        if self.data == "close":
            loop.close()
        return True


class NoLoops(asyncio.DefaultEventLoopPolicy):
    """A policy that has no loop for anybody."""

    def get_event_loop(self) -> asyncio.AbstractEventLoop:
        raise RuntimeError("no loop for anybody")


class Stopping(Job):
    """Stops its event loop in the way that its data name, now or later."""

    async def start(self) -> int:
        loop = Looped.loop = asyncio.get_running_loop()
        if self.data == "now":
            loop.stop()
        elif self.data == "soon":
            loop.call_soon(loop.stop)
        elif self.data == "later":
            loop.call_later(0.01, loop.stop)
        elif self.data == "exits later":
            loop.call_later(0.01, sys.exit, 3)
        else:
            await asyncio.sleep(0.05)
        return os.getpid()


class Spoiling(Job):
    """Has the two classes below fail in this worker."""

    def start(self) -> None:
        FailingFirst.is_spoiled = True


class FailingFirst(Job):
    """Fails in a worker that is spoiled, or always."""

    is_spoiled = False

    def start(self) -> None:
        if FailingFirst.is_spoiled or self.data == "always":
            raise LookupError("not here")


class FailingSecond(FailingFirst):
    """Fails in the same way."""


class Collecting(Job):
    """Starts processes in several ways, lets orphans come and go while these are dead, and returns how they ended."""

    def start(self) -> list[int]:
        forked = os.fork()
        if forked == 0:
            os._exit(3)
        spawned = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 4"], os.environ)
        command = subprocess.Popen(["sh", "-c", "exit 5"])
        child = multiprocessing.get_context("fork").Process(target=os._exit, args=(6,))
        child.start()
        for pid in (forked, spawned, command.pid, child.pid):
            assert pid is not None
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        await_end(orphan())
        child.join()
        waited = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in (forked, spawned)]
        return [*waited, command.wait(), child.exitcode or 0, os.waitstatus_to_exitcode(os.system("exit 7"))]
