"""The fields of log records: which run a line belongs to, in every thread and task of the run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, TypeAlias

Keep: TypeAlias = Callable[[float, str, str, str], None]
"""Keeps one line with its job: time, level, logger and text."""


class RunFields:
    """The fields of each log record of one run; ``keep`` is None once the run has ended."""

    __slots__ = (
        *("attempt", "awaited", "context", "is_hooked", "job", "job_id", "keep", "meta", "node"),
        *("outer", "pid", "queue", "report_awaited", "unfinished"),
    )

    def __init__(
        self,
        *,
        job_id: str,
        job: str,
        queue: str,
        attempt: int,
        node: str,
        meta: Mapping[str, str] = MappingProxyType({}),
        keep: Keep | None = None,
        context: Callable[[], Any] | None = None,
    ) -> None:
        self.job_id = job_id
        self.job = job
        self.queue = queue
        self.attempt = attempt
        self.node = node
        self.meta = meta
        self.keep = keep
        self.context = context
        """Returns the context of the run; None after its end, and for lines that belong to no run."""
        self.outer: RunFields | None = None
        """The run whose job runs this one in its own process."""
        self.pid: int | None = None
        """The worker of the run; None without a node."""
        self.report_awaited: Callable[[Sequence[str]], None] | None = None
        """Reports to the node which jobs the run waits for; None once it has ended, or if there is no node."""
        self.awaited: dict[object, tuple[str, ...]] | None = None
        """The jobs that each wait of the run was reported to wait for; None if none was."""
        self.is_hooked = False
        """Whether threads of the run start with its context variables."""
        self.unfinished: dict[str, str] | None = None
        """The unfinished lines of captured output, by the name of their stream."""

    def items(self) -> tuple[tuple[str, Any], ...]:
        """Return names and values."""
        return (
            ("job_id", self.job_id),
            ("job", self.job),
            ("queue", self.queue),
            ("attempt", self.attempt),
            ("node", self.node),
            ("meta", self.meta),
        )


CURRENT: ContextVar[RunFields | None] = ContextVar("taskqueue_run", default=None)
"""The run that this thread or task works for; None outside of runs."""

OF_NO_RUN = RunFields(job_id="-", job="-", queue="-", attempt=0, node="-")
"""The fields of a line that belongs to no run; ``set_node`` gives it the name of the node."""

NAMES = tuple(name for name, _ in OF_NO_RUN.items())


class RunRecord(logging.LogRecord):
    """A log record with the fields of the run in which it was logged.

    They join its attributes late, when its message is read: ``extra`` may have the same names, and ``logging``
    refuses an ``extra`` that names an attribute. The value of ``extra`` stays then.
    """

    __slots__ = ("run",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.run = CURRENT.get()

    def getMessage(self) -> str:  # noqa: N802 - the name is of logging
        """Return the message; from now on each format may use the fields."""
        attributes = self.__dict__
        for name, value in (self.run or OF_NO_RUN).items():
            if name not in attributes:
                attributes[name] = value
        return super().getMessage()


def install() -> None:
    """Add the fields of its run to every log record of this process and of processes forked from it."""
    logging.setLogRecordFactory(RunRecord)


def set_node(name: str) -> None:
    """Name the node of this process in lines that belong to no run."""
    OF_NO_RUN.node = name
