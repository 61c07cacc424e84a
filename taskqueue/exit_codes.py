"""The exit codes of ``taskqueue-node`` and ``taskqueue``, for supervisors and scripts."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """An exit code, with its meaning in one line."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> Exit:
        """Make an exit code that is a number."""
        member = int.__new__(cls, code)
        member._value_, member.meaning = code, meaning
        return member

    OK = 0, "done as asked; a node that was stopped has settled or handed back all its jobs"
    ERROR = 1, "something else went wrong: the line on stderr says what"
    USAGE = 2, "the command line is wrong: an unknown option or command, or a missing argument"
    CONFIG = 3, "a value of an option, a variable, the settings file, a job or a query is wrong"
    STORE = 4, "cannot use the store: missing, unreachable, damaged, read-only, full, replaced, of another schema"
    BOOTSTRAP = 5, "a module to preload or the bootstrap file cannot be imported"
    CHILDREN = 6, "worker processes die before their first job, again and again"
    LOST = 7, "the node may no longer hold its claims: its manager was silent or left, or its lease was lost"
    KILLED = 8, "the node stopped, but had to kill work"
    NOT_FOUND = 9, "there is no such job, a shortened id matches several, or no node leads or runs on this host"
    UNFINISHED = 10, "a wait timed out before all jobs had ended"
    UNSUCCESSFUL = 11, "a job that was waited for ended, but not as DONE"
    OUTPUT = 12, "the output cannot be written, such as to a full disk; the command may have taken effect"
    UNREADY = 13, "a node is live but takes no jobs: its store is down, or it starts, stands by, drains or stops"
    NOT_LIVE = 14, "a node was killed, is stopped, or its loop hangs"
    FLAWS = 15, "`taskqueue doctor` has found something that somebody should fix"
    INTERRUPTED = 130, "the command was interrupted with Ctrl-C; jobs are not affected"
