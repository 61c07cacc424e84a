"""The exit codes of ``taskqueue-node`` and ``taskqueue``, for supervisors and scripts."""

from __future__ import annotations

from enum import IntEnum
from types import MappingProxyType


class Exit(IntEnum):
    """An exit code; ``MEANING`` says each in words."""

    OK = 0
    ERROR = 1
    USAGE = 2
    CONFIG = 3
    STORE = 4
    BOOTSTRAP = 5
    CHILDREN = 6
    LOST = 7
    KILLED = 8
    NOT_FOUND = 9
    UNFINISHED = 10
    UNSUCCESSFUL = 11
    OUTPUT = 12
    UNREADY = 13
    NOT_LIVE = 14
    FLAWS = 15
    INTERRUPTED = 130


MEANING = MappingProxyType(
    {
        Exit.OK: "done as asked; a node that was stopped has settled or handed back all its jobs",
        Exit.ERROR: "something else went wrong: the line on stderr says what",
        Exit.USAGE: "the command line is wrong: an unknown option or command, or a missing argument",
        Exit.CONFIG: "a value of an option, a variable, the settings file, a job or a query is wrong",
        Exit.STORE: "cannot use the store: missing, unreachable, damaged, read-only, full, replaced, of another schema",
        Exit.BOOTSTRAP: "a module to preload or the bootstrap file cannot be imported",
        Exit.CHILDREN: "worker processes die before their first job, again and again",
        Exit.LOST: "the node may no longer hold its claims: its manager was silent or left, or its lease was lost",
        Exit.KILLED: "the node stopped, but had to kill work",
        Exit.NOT_FOUND: "there is no such job, a shortened id matches several, or no node leads or runs on this host",
        Exit.UNFINISHED: "a wait timed out before all jobs had ended",
        Exit.UNSUCCESSFUL: "a job that was waited for ended, but not as DONE",
        Exit.OUTPUT: "the output cannot be written, such as to a full disk; the command may have taken effect",
        Exit.UNREADY: "a node is live but takes no jobs: its store is down, or it starts, stands by, drains or stops",
        Exit.NOT_LIVE: "a node was killed, is stopped, or its loop hangs",
        Exit.FLAWS: "`taskqueue doctor` has found something that somebody should fix",
        Exit.INTERRUPTED: "the command was interrupted with Ctrl-C; jobs are not affected",
    }
)
"""What each exit code says, in one line; the reference page is compared with it."""
