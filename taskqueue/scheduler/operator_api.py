"""The operator's half of the public API: pause, drain, limit, count and explain."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from taskqueue.insight.records import page, read
from taskqueue.model.controls import Control, Controls, Kind
from taskqueue.model.ids import JobId
from taskqueue.model.query import EVERYTHING, parse
from taskqueue.model.record import Status
from taskqueue.scheduler import controls
from taskqueue.scheduler.operations import BlockingOperations
from taskqueue.scheduler.process import id_of

if TYPE_CHECKING:
    from taskqueue.insight.limit_states import LimitState
    from taskqueue.insight.nodes import Node
    from taskqueue.insight.overview_reader import OverviewReader
    from taskqueue.insight.releases import Release
    from taskqueue.model.analytics import Analytics
    from taskqueue.model.audit import AuditEntry
    from taskqueue.model.history import HistoryEntry
    from taskqueue.model.job import Job
    from taskqueue.model.limits import Declared, LimitKey
    from taskqueue.model.log_lines import LogLine
    from taskqueue.model.options.table import When
    from taskqueue.scheduler.event import EventSnapshot
    from taskqueue.scheduler.process import Process
    from taskqueue.scheduler.scheduler import Scheduler


MOST_EVENTS = 5_000
"""How many event writes to scan when collecting one job's events."""

EARLIER = timedelta(seconds=5)
"""How long before the job was added to start looking for its first event: clocks differ."""


class Operations(BlockingOperations):
    """The methods for operators; ``Scheduler`` inherits them."""

    def flush(self) -> int:
        """Remove all jobs, whatever their status, and return their number; running jobs are stopped by their nodes."""
        number = self._connections.store.flush()
        self._connections.doubt()
        return number

    def paused(self) -> list[Control]:
        """Return the active pauses, by the ``name`` of their queues; ``""`` is the pause of all queues."""
        return controls.in_force(self._connections.store, Kind.PAUSE)

    def releases(self) -> list[Release]:
        """Return the marked releases, the oldest first."""
        from taskqueue.insight.releases import releases_of

        return releases_of(self._connections.store.leases())

    def set_limit(
        self,
        name: type[Job[Any, Any]] | str,
        limit: Declared | int | str | None,
        reason: str = "",
        *,
        by: str | None = None,
    ) -> None:
        """Change the number of a limit from now on, even for jobs that already wait; None restores the declared number.

        ``name`` is the name of a shared limit, or the class (or its path) that declares it; ``limit`` is the declared
        limit with another number: ``Limit(8)``, ``Limit(8, by="bucket")``, ``Rate(200, per=60)``, or the same as text.
        Jobs that already run beyond a lower number continue. Raises ``InvalidOption`` and ``InvalidJob``.
        """
        if limit is None:
            controls.reset_limit(self._connections.store, name)
        else:
            controls.set_limit(self._connections.store, name, limit, reason, by)

    def controls(self) -> list[Control]:
        """Return all controls: pauses, drained nodes, changed limits."""
        return list(self._connections.store.controls().kept)

    def find_jobs(
        self,
        query: Mapping[str, Any] | None = None,
        *,
        order: str = "-created_at",
        limit: int = 100,
        after: Process | JobId | str | None = None,
        offset: int = 0,
    ) -> list[Process]:
        """Return a page of the jobs that match, in this order; without a query, of all jobs.

        ``order`` is ``id``, ``created_at``, ``ended_at`` or ``rank``; with a ``-`` before it, descending. ``after`` is
        the last job of the previous page, or its id: each page is as fast as the first. ``offset`` leaves out as many
        jobs, up to 10,000, which are read. Raises ``InvalidQuery``, and ``JobNotFound`` for an id.
        """
        from taskqueue.scheduler.process import Process

        records = page(self._connections.store, query, order, limit, after, offset)
        return [Process(cast("Scheduler", self), record) for record in records]

    def count_jobs(self, query: Mapping[str, Any] | None = None) -> int:
        """Return how many jobs match the query; without a query, count all jobs. Raises ``InvalidQuery``."""
        return self._connections.store.count(EVERYTHING if query is None else parse(query))

    def stats(self) -> dict[str, Any]:
        """Return how many jobs there are: ``total``, by name of status in ``statuses``, by both in ``queues``.

        ``waiting_since`` says for each queue since when its first job has been waiting.
        """
        since = dict(sorted(self._connections.store.waiting_since().items()))
        return {**numbers_of(self._connections.store.tally()), "waiting_since": since}

    def overview_reader(self) -> OverviewReader:
        """Return a reader of the whole state at once: queues, nodes, running jobs, failures, and problems."""
        from taskqueue.insight.overview_reader import OverviewReader

        return OverviewReader(self._connections.store)

    def nodes(self) -> list[Node]:
        """Return the nodes that work on the store, by name; a killed node is included until its seat is taken again."""
        from taskqueue.insight import nodes

        return nodes.nodes(self._connections.store)

    def limits(self, families: Collection[str] = ()) -> list[LimitState]:
        """Return the limits of running and waiting jobs: who holds their places, and how many wait; full ones first.

        With ``families``, such as ``limit:name=api``, it returns only limits of these. If there are more than 100 keys,
        it returns the keys that the most jobs wait for.
        """
        from taskqueue.insight.limit_states import limit_states

        return limit_states(self._connections.store, families)

    def analytics(
        self, by: str = "queue", since: When = "1h", until: When | None = None, *, at_most: int = 100_000
    ) -> Analytics:
        """Return figures of the jobs that ended after ``since`` and up to ``until``, and counts of jobs that have not.

        ``by`` is ``queue``, ``class``, ``tag``, ``hour`` or ``day``. ``since`` and ``until`` are times, or durations:
        that long ago, or before ``until``; the default of ``until`` is now. The figures come from the history, in whole
        minutes or, long ago, hours: no job is read. By tag, the newest ``at_most`` jobs are read: if more ended, the
        ``since`` of the value says when its complete figures start.
        """
        from taskqueue.insight import analytics

        return analytics.figures(self._connections.store, by, since, until, at_most)

    def stack(self, id: JobId | str) -> str:
        """Return where a running job is: the stack of all its threads and asyncio tasks, without stopping it.

        It has files, lines and functions, 60 KiB at most, without any values; the node that runs the job answers.
        Raises ``JobNotFound``, ``WrongStatus`` for a job that does not run, and ``StackUnavailable``.
        """
        from taskqueue.scheduler import stacks

        self._connections.refuse_if_immediate("stack()")
        return stacks.stack(self._connections.store, id_of(id, self._connections))

    def logs(self, id: JobId | str) -> list[LogLine]:
        """Return the log lines that are kept with the job, the oldest first; raise ``JobNotFound``.

        For each of its last 20 runs the last 200 lines are kept, 64 KiB at most: lines of ``self.log``, of ``logging``,
        and with ``--capture-output`` the printed output.
        """
        from taskqueue.model.log_lines import lines_of

        store, job_id = self._connections.store, id_of(id, self._connections)
        texts = store.log_lines(job_id)
        if not texts:
            read(store, [job_id])
        return [line for run, text in sorted(texts.items()) for line in lines_of(run, text)]

    def events_of(self, id: JobId | str) -> list[EventSnapshot]:
        """Return the events of the job that are kept, which is for a day, the oldest first; raise ``JobNotFound``.

        The first 5,000 event writes since it was added are scanned: on a busy store, those of its first minutes.
        """
        from taskqueue.scheduler.event import EventSnapshot

        store, job_id = self._connections.store, id_of(id, self._connections)
        [record] = read(store, [job_id])
        events = store.events_of(job_id, record.created_at - EARLIER, MOST_EVENTS)
        return [EventSnapshot(event) for event in events]

    def history(
        self,
        since: Any = "1h",
        until: Any = None,
        *,
        queue: str | None = None,
        job: Any = None,
        step: str = "minute",
    ) -> list[HistoryEntry]:
        """Return figures of jobs by queue and class, for each minute or hour from ``since`` to ``until``.

        The times are as for ``analytics``. ``job`` is a class, a function or its path. Minutes are kept for 72 hours,
        hours (``step="hour"``) for 90 days, whether or not the jobs are.
        """
        from taskqueue.insight import analytics

        return analytics.history(self._connections.store, since, until, queue, job, step)

    def why(self, id: JobId | str) -> str:
        """Say in sentences why the job is in its current state, and what happened in its attempts."""
        from taskqueue.insight import why

        return why.why(self._connections.store, id_of(id, self._connections))

    def record_action(
        self, action: str, target: str, *, by: str, source: str = "", about: Mapping[str, Any] | None = None
    ) -> None:
        """Record in the audit who (``by``) did what (``action``) to what (``target``), and from where (``source``).

        Entries are kept for 400 days, even if the jobs are removed. ``about`` holds details as JSON values.
        """
        from taskqueue.scheduler import audit_trail

        audit_trail.record(self._connections.store, action, target, by=by, source=source, about=about)

    def audit(self, limit: int = 100, before: str | None = None) -> list[AuditEntry]:
        """Return up to ``limit`` entries of the audit, the newest first; ``before`` is the cursor of an entry."""
        from taskqueue.scheduler import audit_trail

        return audit_trail.entries(self._connections.store, limit, before)


def explained(api: Operations, id: JobId | str, mask: Callable[[LimitKey], LimitKey]) -> str:
    """Return what ``why`` says to people who may not see everything: each limit key is masked before it is named."""
    from taskqueue.insight import why

    return why.why(api._connections.store, id_of(id, api._connections), mask)  # noqa: SLF001 - of a class of this file


def holds_of(api: Operations, processes: Iterable[Process]) -> Controls:
    """Return the active controls and the limits that are used up, as far as these jobs wait."""
    from taskqueue.insight import obstacles

    return obstacles.holds(api._connections.store, [each.snapshot for each in processes])  # noqa: SLF001 - as above


def numbers_of(tally: Mapping[tuple[str, Status], int]) -> dict[str, Any]:
    """Return a tally by names: ``total``, by name of status in ``statuses``, by both in ``queues``."""
    statuses = {status.name: 0 for status in Status}
    queues: dict[str, dict[str, int]] = {}
    for (queue, status), number in sorted(tally.items()):
        statuses[status.name] += number
        queues.setdefault(queue, {name.name: 0 for name in Status})[status.name] = number
    return {"total": sum(statuses.values()), "statuses": statuses, "queues": queues}
