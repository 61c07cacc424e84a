"""The state that every job finds in its process: resets what jobs changed, and reports what cannot be reset.

Environment variables stay as they are: modules set them for good when they are imported.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import gc
import io
import locale
import logging
import os
import resource
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import copy_context
from functools import partial, wraps
from operator import attrgetter, itemgetter
from typing import Any, TypeGuard

from taskqueue.daemon.runtime.child_process import IoPriority
from taskqueue.daemon.runtime.leftovers import LOCKS
from taskqueue.execution.log_capture import KEEPER, attach
from taskqueue.model.log_fields import CURRENT

LIMITS: Mapping[int, str] = {
    LOCKS: "RLIMIT_LOCKS",
    **{
        getattr(resource, name): name for name in dir(resource) if name.startswith("RLIMIT_") and name != "RLIMIT_OFILE"
    },
}
"""Each limit of a process that the system knows, with its name."""

_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_NO_TIME = (0.0, 0.0)
_NO_TIMERS: frozenset[bytes] = frozenset()

_NAMESPACES = {
    "cgroup": "cgroup namespace",
    "ipc": "IPC namespace",
    "mnt": "mount namespace",
    "net": "network namespace",
    "pid_for_children": "PID namespace",
    "time_for_children": "time namespace",
    "user": "user namespace",
    "uts": "UTS namespace",
}
"""The namespaces of a process by their names in ``/proc/self/ns`` (namespaces(7)), in words."""

_FOR_GOOD = {
    "root": "root folder",
    "Uid": "user",
    "Gid": "group",
    "Groups": "groups",
    "NSpgid": "process group",
    "NSsid": "session",
    "CapInh": "capabilities",
    "CapPrm": "capabilities",
    "CapEff": "capabilities",
    "CapBnd": "capabilities",
    "CapAmb": "capabilities",
    "NoNewPrivs": "no_new_privs",
    "Seccomp": "seccomp filter",
    "posix_timers": "POSIX timers",
}
"""Attributes that a worker cannot restore, or only with rights that it may have lost, in words."""

_SET_BACK = {
    "SigBlk": "blocked signals",
    "folder": "working directory",
    "Umask": "umask",
    "nice": "nice value",
    "scheduler": "scheduling policy",
    "io_priority": "I/O priority",
    "oom_score_adj": "oom_score_adj",
    "timers": "timers",
    "Cpus_allowed": "allowed processors",
}
"""Attributes that are restored, in words; limits and handlers have names of their own."""

_ADOPTED = ("SigIgn", "SigCgt", "Cpus_allowed", "folder")
"""Attributes that may stay changed: by C code, by an operator, or because a folder is gone."""

_SEEN = {**_FOR_GOOD, **_SET_BACK}
"""Attributes that a job may have changed, in words."""


def _set_garbage_collection(settings: tuple[bool, tuple[int, int, int], int]) -> None:
    is_on, thresholds, flags = settings
    (gc.enable if is_on else gc.disable)()
    gc.set_threshold(*thresholds)
    gc.set_debug(flags)


def _set_start_method(method: str | None) -> None:
    import multiprocessing  # imported by now, or it would be unchanged

    multiprocessing.set_start_method(method, force=True)


def _set_path(entries: Sequence[str]) -> None:
    sys.path[:] = entries


def _set_root_logger(settings: tuple[int, Sequence[logging.Handler]]) -> None:
    level, handlers = settings
    logging.root.setLevel(level)
    logging.root.handlers[:] = handlers
    for handler in handlers:
        if isinstance(handler, logging.FileHandler):
            handler.mode = "a"  # one that was closed opens its file again, but not in mode "w"


def _set_disabled(_: bool) -> None:
    """Disable the loggers that were disabled before the first run, and no others."""
    for name, logger in _loggers():
        logger.disabled = name in _disabled_before


def _set_traceback_limit(limit: int | None) -> None:
    if limit is None:
        del sys.tracebacklimit
    else:
        sys.tracebacklimit = limit


def _set_exception_hooks(hooks: tuple[Any, Any, Any]) -> None:
    sys.excepthook, sys.unraisablehook, threading.excepthook = hooks


def _set_warnings(filters: Sequence[Any]) -> None:
    warnings.filters[:] = filters  # type: ignore[index]
    with warnings.catch_warnings():  # which warnings were shown is forgotten, as it depends on the filters
        pass


_SETTINGS: Mapping[str, Callable[[Any], object]] = {
    "recursion limit": sys.setrecursionlimit,
    "switch interval": sys.setswitchinterval,
    "garbage collection": _set_garbage_collection,
    "level of logging.disable": logging.disable,
    "default timeout of sockets": socket.setdefaulttimeout,
    "locale": partial(locale.setlocale, locale.LC_ALL),
    "stack size of threads": threading.stack_size,
    "limit of tracebacks": _set_traceback_limit,
    "disabled loggers": _set_disabled,
    "start method of multiprocessing": _set_start_method,
    "sys.path": _set_path,
    "root logger": _set_root_logger,
    "filters of warnings": _set_warnings,
    "hooks for uncaught exceptions": _set_exception_hooks,
}
"""Settings of Python that hold for all code of the process, in the order of ``_settings``: how to set them."""

_OF_IMPORTS = 5
"""The last settings, which modules set when they are imported, even during a run, and which code changes for a moment
(``warnings.catch_warnings``)."""

_LOG = logging.getLogger(__name__)
"""It is disabled if a job has disabled the existing loggers, as ``logging.config`` does by default."""

_disabled_before: set[str] = set()
"""The names of the loggers that were disabled before the first run."""

_plain_handler: Callable[[int], Any] = vars(signal)["_signal"].getsignal
"""What ``signal.getsignal`` calls, which then fails to make an enum of a function: in 20 us after a pause."""

_STREAMS = range(3)
"""The descriptors of the standard streams."""


class ProcessAttributes:
    """The attributes of this process as they were before its first run."""

    def __init__(self) -> None:
        self._status_file = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
        shown = [line.partition(b":")[0].decode() for line in os.pread(self._status_file, 8192, 0).split(b"\n")]
        self._names = [name for name in shown if name in _SEEN or name in _ADOPTED]
        self._lines = itemgetter(*map(shown.index, self._names))
        """Takes the lines of these attributes from the status, in which each has its place for good."""
        self._limits_file = os.open("/proc/self/limits", os.O_RDONLY | os.O_CLOEXEC)
        self._oom_file = _opened("/proc/self/oom_score_adj")
        self._timers_file = (
            os.open("/proc/self/timers", os.O_RDONLY | os.O_CLOEXEC) if os.path.exists("/proc/self/timers") else None
        )
        self._own_timers: frozenset[bytes] = frozenset()
        self._own_timers = self.posix_timers()
        self._namespaces = _namespaces()
        self._limits = [(number, resource.getrlimit(number)) for number in LIMITS]
        self._folder = _present_folder()
        self._mask = _umask()
        self._nice = os.getpriority(os.PRIO_PROCESS, 0)
        self._scheduler = os.sched_getscheduler(0)
        self._io_priority = IoPriority()
        self._processors = os.sched_getaffinity(0)
        self._blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self._handlers = {number: signal.getsignal(number) for number in signal.valid_signals() - {signal.SIGTERM}}
        self._caught = [number for number, handler in self._handlers.items() if callable(handler)]
        self.user = os.geteuid()
        """The user as whom the process acts."""
        self._lost = ""
        self._before = self._present()

    def set_back(self) -> tuple[list[str], str]:
        """Reset changed attributes; return in words which were reset and which cannot be; empty if none changed."""
        present, before = self._present(), self._before
        if present == before:
            return [], ""
        changed = [words for name, words in _SET_BACK.items() if present.get(name) != before.get(name)]
        if present["limits"] != before["limits"]:
            changed += self._set_limits_back()
        self._set_rest_back(present)
        changed += self._set_handlers_back()
        present = self._present()
        before.update({name: present[name] for name in _ADOPTED if name in present})
        if self._lost:
            return changed, f"{self._lost} was changed for good"
        word = next((word for name, word in _FOR_GOOD.items() if present.get(name) != before.get(name)), "")
        return changed, f"its {word} was changed" if word else ""

    def changes(self) -> list[str]:
        """Return in words what was changed, and set nothing back: jobs that run may depend on it."""
        present, before = self._present(), self._before
        names = [name for name in present if present[name] not in ("", before.get(name)) and name != "Cpus_allowed"]
        changed = dict.fromkeys(_SEEN[name] for name in names if name in _SEEN)  # a removed folder is no job's change
        limits = [LIMITS[number] for number, limit in self._limits if resource.getrlimit(number) != limit]
        return [*changed, *limits, *(_handler_of(number) for number, _ in self._changed_handlers())]

    def posix_timers(self) -> frozenset[bytes]:
        """Return the timers of ``timer_create`` that jobs have left, whose signals may end the process."""
        if self._timers_file is None:
            return _NO_TIMERS
        lines = os.pread(self._timers_file, 65536, 0).split(b"\n")
        return frozenset(line for line in lines if line.startswith(b"ID:")) - self._own_timers

    def adopt_timers(self, before: frozenset[bytes]) -> None:
        """Make later runs keep the timers that have come since ``before``."""
        self._own_timers |= self.posix_timers() - before

    def left_namespace(self) -> str:
        """Return in words which namespace was left (``unshare``, ``setns``); empty if none was.

        Eight system calls: it is asked after failed runs.
        """
        present = _namespaces()
        word = next((word for name, word in _NAMESPACES.items() if present.get(name) != self._namespaces.get(name)), "")
        return f"its {word} was changed" if word else ""

    def _present(self) -> dict[str, Any]:
        """Return all attributes by their names."""
        lines = os.pread(self._status_file, 8192, 0).split(b"\n")
        present: dict[str, Any] = dict(zip(self._names, self._lines(lines), strict=True))
        present["limits"] = os.pread(self._limits_file, 8192, 0)
        if "Umask" not in present:  # gVisor, for one, does not show it
            present["Umask"] = _umask()
        root = os.stat("/")
        present["root"] = root.st_dev, root.st_ino
        present["oom_score_adj"] = os.pread(self._oom_file, 16, 0)
        present["folder"] = _present_folder()
        present["nice"] = os.getpriority(os.PRIO_PROCESS, 0)
        present["scheduler"] = os.sched_getscheduler(0)
        present["io_priority"] = self._io_priority.present()
        times = map(signal.getitimer, _TIMERS)
        present["timers"] = next(times) > _NO_TIME, next(times) > _NO_TIME, next(times) > _NO_TIME
        has_timers = self._timers_file is not None and os.pread(self._timers_file, 1, 0)
        present["posix_timers"] = self.posix_timers() if has_timers else _NO_TIMERS
        present["handlers"] = tuple(map(_plain_handler, self._caught))
        return present

    def _set_limits_back(self) -> Iterator[str]:
        for number, before in self._limits:
            if resource.getrlimit(number) != before:
                try:
                    resource.setrlimit(number, before)
                except (OSError, ValueError):  # the hard one was lowered: only root can raise it
                    self._lost = LIMITS[number]
                yield LIMITS[number]

    def _set_rest_back(self, present: Mapping[str, Any]) -> None:
        """Restore all but limits and handlers; the processors that an operator has set stay (``_ADOPTED``)."""
        os.umask(self._mask)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked)
        if present["folder"] != self._folder:
            with contextlib.suppress(OSError):
                os.chdir(self._folder)
        if present.get("Cpus_allowed") != self._before.get("Cpus_allowed"):
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, self._processors)
        if present["scheduler"] != self._scheduler:
            try:
                os.sched_setscheduler(0, self._scheduler, os.sched_param(0))
            except OSError:
                self._lost = "the scheduling policy"
        if present["nice"] != self._nice:
            try:
                os.setpriority(os.PRIO_PROCESS, 0, self._nice)
            except OSError:
                self._lost = "the nice value"
        if not self._io_priority.set_back(present["io_priority"]):
            self._lost = "the I/O priority"
        if present["oom_score_adj"] != self._before["oom_score_adj"]:
            try:
                os.pwrite(self._oom_file, self._before["oom_score_adj"], 0)
            except OSError:  # without CAP_SYS_RESOURCE it cannot be lowered below what it was set to with it
                self._lost = "oom_score_adj"
        for timer in _TIMERS:
            signal.setitimer(timer, 0)

    def _set_handlers_back(self) -> Iterator[str]:
        for number, handler in self._changed_handlers():
            signal.signal(number, handler)
            yield _handler_of(number)

    def _changed_handlers(self) -> Iterator[tuple[int, Any]]:
        """Yield each signal whose handler was changed, with the handler before."""
        for number, handler in self._handlers.items():
            if handler is not None and signal.getsignal(number) != handler:
                yield number, handler


class ArmedDump:
    """Knows whether a job has armed ``faulthandler.dump_traceback_later``, which may end the process.

    Nothing shows whether it is armed, and canceling one that was armed before the fork of this process never returns.
    """

    def __init__(self) -> None:
        self.is_armed = False
        arm, cancel = faulthandler.dump_traceback_later, faulthandler.cancel_dump_traceback_later

        @wraps(arm)
        def noted(*arguments: Any, **named: Any) -> None:
            arm(*arguments, **named)
            self.is_armed = True

        @wraps(cancel)
        def canceled() -> None:
            cancel()
            self.is_armed = False

        faulthandler.dump_traceback_later, faulthandler.cancel_dump_traceback_later = noted, canceled

    def set_back(self) -> None:
        """Cancel it; a job must have armed it."""
        faulthandler.cancel_dump_traceback_later()
        self.is_armed = False


class StandardStreams:
    """The standard streams, and the files that their descriptors lead to, as each run finds them."""

    def __init__(self) -> None:
        self._copies: list[int] = []
        self.adopt()

    def adopt(self) -> None:
        """Make later runs see the current streams. Raises OSError if a descriptor is closed."""
        self._blocking = [os.get_blocking(number) for number in _STREAMS]  # raises for a closed one
        copies = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, len(_STREAMS)) for number in _STREAMS]
        for copy in self._copies:
            os.close(copy)
        self._copies = copies
        self._streams = (sys.stdin, sys.stdout, sys.stderr)
        given = [*enumerate(self._streams), *enumerate((sys.__stdin__, sys.__stdout__, sys.__stderr__))]
        own = {stream: number for number, stream in given if _is_open(stream)}  # most are both
        self._own = [_OwnStream(number, stream) for stream, number in own.items()]
        self._before = self._present()

    def have_changed(self) -> bool:
        """Return whether jobs have replaced or closed a stream, or its descriptor leads elsewhere or does not block."""
        return self._present() != self._before

    def set_back(self) -> bool:
        """Reset the streams; return whether they were changed. Raises OSError if that is impossible."""
        if self._present() == self._before:
            return False
        for number, copy in enumerate(self._copies):
            os.dup2(copy, number)
            if os.get_blocking(number) != self._blocking[number]:  # other programs may have the same file
                os.set_blocking(number, self._blocking[number])
        sys.stdin, sys.stdout, sys.stderr = self._streams  # this may end a stream that closes the file of another
        for stream in self._own:
            stream.set_back()
        return True

    def _present(self) -> tuple[Any, ...]:
        """Return all of it in a form that can be compared."""
        stdout, stderr = sys.stdout, sys.stderr
        present: list[Any] = [sys.stdin, getattr(stdout, "beneath", stdout), getattr(stderr, "beneath", stderr)]
        try:
            for number in _STREAMS:
                file = os.fstat(number)
                present += file.st_dev, file.st_ino
            present += os.get_blocking(1), os.get_blocking(2)
            for stream in self._own:
                present.append(stream.stream.closed)
                present.append(_settings_of_stream(stream.stream))
        except (OSError, ValueError) as error:  # a descriptor was closed, or a stream detached
            present.append(repr(error))
        return tuple(present)


_STREAM_SETTINGS = ("encoding", "errors", "line_buffering", "write_through")
_settings_of_stream = attrgetter(*_STREAM_SETTINGS)


class _OwnStream:
    """A stream for a standard descriptor; handlers and modules may have it."""

    def __init__(self, number: int, stream: io.TextIOWrapper) -> None:
        self._number = number
        self.stream = stream
        self._before = _settings_of_stream(stream)

    def set_back(self) -> None:
        """Open it again, as the same object, if it was closed or detached; reset its settings."""
        before = dict(zip(_STREAM_SETTINGS, self._before, strict=True))
        if not _is_open(self.stream):
            raw = io.FileIO(self._number, "w" if self._number else "r", closefd=False)
            buffer: Any = io.BufferedWriter(raw) if self._number else io.BufferedReader(raw)
            io.TextIOWrapper.__init__(self.stream, buffer, **before)
        elif _settings_of_stream(self.stream) != self._before:
            with contextlib.suppress(io.UnsupportedOperation):  # the encoding of what is being read is final
                self.stream.reconfigure(**before)


def _is_open(stream: Any) -> TypeGuard[io.TextIOWrapper]:
    """Return whether it is a stream of a file, and neither closed nor detached."""
    try:
        return isinstance(stream, io.TextIOWrapper) and not stream.closed
    except ValueError:
        return False


class InterpreterSettings:
    """Settings of Python and context variables: what modules set when they are imported stays, unlike later changes.

    The last settings also stay if a run has imported a module: it may have set them, and is imported only once.
    """

    def __init__(self) -> None:
        _disabled_before.clear()
        _disabled_before.update(name for name, logger in _loggers() if logger.disabled)
        self._before = _settings()
        self._modules = len(sys.modules)
        self.adopt_context()

    def adopt(self, before: Sequence[Any]) -> None:
        """Make later runs see the settings that have changed since ``before``."""
        triples = zip(self._before, before, _settings(), strict=True)
        self._before = tuple(now if now != earlier else first for first, earlier, now in triples)
        self._modules = len(sys.modules)

    def adopt_context(self) -> None:
        """Make later runs see the current context variables, except those of this run."""
        self._context = copy_context()
        self._context.run(CURRENT.set, None)
        self._has_decimal = any(variable.name == "decimal_context" for variable in self._context)

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Call the function in a copy of the context: what it sets there ends with the call."""
        context = self._context.copy()
        if self._has_decimal:
            context.run(own_decimal_context)
        context.run(function, *arguments)

    def present(self) -> Sequence[Any]:
        """Return the current settings, for ``adopt``."""
        present = _settings()
        if len(sys.modules) != self._modules:
            self._modules = len(sys.modules)
            self._before = (*self._before[:-_OF_IMPORTS], *present[-_OF_IMPORTS:])
        return present

    def changes(self) -> list[str]:
        """Return the names of the changed settings."""
        pairs = zip(_SETTINGS, self._before, self.present(), strict=True)
        return [name for name, before, now in pairs if now != before]

    def lasting_changes(self) -> list[str]:
        """Return the names of the changed settings, except settings that code changes for a moment."""
        return [name for name in self.changes() if name not in [*_SETTINGS][-_OF_IMPORTS:]]

    def set_back(self) -> list[str]:
        """Reset the changed settings and return their names."""
        if _settings() == self._before and len(sys.modules) == self._modules:
            return []
        changed = self.changes()
        for name, before in zip(_SETTINGS, self._before, strict=True):
            if name in changed:
                _SETTINGS[name](before)
        return changed


def _settings() -> tuple[Any, ...]:
    """Return the current settings in the order of ``_SETTINGS``."""
    if KEEPER not in logging.root.handlers:  # whoever has reconfigured logging: each run adds it
        attach()
    return (
        sys.getrecursionlimit(),
        sys.getswitchinterval(),
        (gc.isenabled(), gc.get_threshold(), gc.get_debug()),
        logging.root.manager.disable,
        socket.getdefaulttimeout(),
        locale.setlocale(locale.LC_ALL),
        (stack_size := threading.stack_size(), threading.stack_size(stack_size))[0],  # the first call sets it to 0
        getattr(sys, "tracebacklimit", None),
        _LOG.disabled,
        _start_method() if "multiprocessing" in sys.modules else None,
        tuple(sys.path),
        (logging.root.level, tuple(logging.root.handlers)),
        tuple(warnings.filters),
        (sys.excepthook, sys.unraisablehook, threading.excepthook),
    )


def _loggers() -> list[tuple[str, logging.Logger]]:
    loggers = list(logging.root.manager.loggerDict.items())  # a thread may add some
    return [(name, logger) for name, logger in loggers if isinstance(logger, logging.Logger)]


def _start_method() -> str | None:
    """Return the start method of multiprocessing; None for the default, which its first use selects."""
    multiprocessing: Any = sys.modules["multiprocessing"]
    if not hasattr(multiprocessing, "get_all_start_methods"):  # a thread is importing it
        return None
    method: str | None = multiprocessing.get_start_method(allow_none=True)
    return None if method == multiprocessing.get_all_start_methods()[0] else method


def own_decimal_context() -> None:
    """Give the current context a decimal context of its own: copies of a context share one, which jobs can change."""
    decimal: Any = sys.modules.get("decimal")
    if decimal is not None:
        decimal.setcontext(decimal.getcontext().copy())


class CurrentLoop:
    """The current event loop, and the policy of asyncio before the first run, if asyncio was imported by then.

    It uses attributes of asyncio that are not public: each public way to ask for the current loop makes one, and from
    Python 3.14 on those of policies warn.
    """

    def __init__(self) -> None:
        self._policy = getattr(sys.modules.get("asyncio.events"), "_event_loop_policy", None)

    def set_back(self) -> str:
        """Restore the policy, forget current and running loops that are of no use, and return what a job had changed.

        ``asyncio.run`` leaves no loop and allows none to be made; a job may have closed its own. An open loop stays:
        libraries are bound to it.
        """
        events: Any = sys.modules.get("asyncio.events")
        if events is None:
            return ""
        running = events._get_running_loop()  # noqa: SLF001
        if running is not None and not running.is_running():
            events._set_running_loop(None)  # noqa: SLF001
        policy, changed = getattr(events, "_event_loop_policy", None), ""
        if policy is not self._policy:
            if self._policy is None and type(policy).__module__ == "asyncio.unix_events":
                self._policy = policy  # asyncio made it when it was needed
            else:
                events._event_loop_policy = self._policy  # noqa: SLF001
                policy, changed = self._policy, "event loop policy"
        local: Any = getattr(policy, "_local", None)
        if getattr(local, "_set_called", False):
            loop = getattr(local, "_loop", None)
            if loop is None or loop.is_closed():
                local._set_called, local._loop = False, None  # noqa: SLF001
        return changed


def _handler_of(number: int) -> str:
    return f"handler of {getattr(number, 'name', f'signal {number}')}"


def _namespaces() -> dict[str, int]:
    """Return the number of each namespace that the system knows."""
    inodes = {}
    for name in _NAMESPACES:
        with contextlib.suppress(OSError):
            inodes[name] = os.stat(f"/proc/self/ns/{name}").st_ino
    return inodes


def _opened(file: str) -> int:
    """Return a descriptor of a file of ``/proc``; in some containers it can only be read."""
    try:
        return os.open(file, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return os.open(file, os.O_RDONLY | os.O_CLOEXEC)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _present_folder() -> str:
    """Return the working directory; empty if it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""
