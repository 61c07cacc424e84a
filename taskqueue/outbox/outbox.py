"""The outbox of an application: one table in its own database, into which it adds jobs with one INSERT each."""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, ClassVar

from taskqueue.errors import ConfigError
from taskqueue.model.schedules import Duration, seconds_of
from taskqueue.model.shown_text import as_code
from taskqueue.model.timestamps import host_time
from taskqueue.model.wording import some
from taskqueue.outbox import connections
from taskqueue.outbox.relay import Relay
from taskqueue.outbox.rows import Row, row_of
from taskqueue.scheduler import job_meta, new_jobs
from taskqueue.scheduler.schedule_api import NO_DATA

if TYPE_CHECKING:
    from datetime import datetime

    from typing_extensions import Unpack

    from taskqueue.model.ids import JobId
    from taskqueue.model.job import Data
    from taskqueue.model.options.table import JobOptions
    from taskqueue.scheduler.job_meta import NewJob
    from taskqueue.scheduler.process import Result
    from taskqueue.scheduler.scheduler import Scheduler
    from taskqueue.scheduler.signatures import Addable, Entry

_TABLE_SHAPE = re.compile(r"[A-Za-z_]\w{0,62}(\.[A-Za-z_]\w{0,62})?", re.ASCII)

_TYPES = {"sqlite": ("TEXT", ""), "postgresql": ("TEXT", ""), "mysql": ("LONGTEXT", " ENGINE=InnoDB CHARSET=utf8mb4")}
"""For each kind of database, the type of a long text, and the end of a table definition."""


class OutboxTable:
    """A table of new jobs, as the relay sees it, whoever adds them."""

    _awaits: ClassVar = False
    """Whether adds are awaited, and so a hook may have to be."""

    def __init__(
        self,
        connect: Callable[[], Any],
        *,
        table: str = "taskqueue_outbox",
        every: Duration = 1.0,
        before_add: Callable[[NewJob], object] | None = None,
    ) -> None:
        kind = type(self).__name__
        if not callable(connect):
            raise ConfigError(
                f"{kind}({as_code(connect)}): pass a function that connects to your database, such as engine.connect "
                "or lambda: sqlite3.connect('shop.db')"
            )
        if not isinstance(table, str) or not _TABLE_SHAPE.fullmatch(table):
            raise ConfigError(f"{kind}: table={as_code(table)}: pass a name of letters, digits and _: 'jobs_to_add'")
        self.connect = connect
        self.table = table
        self.every = seconds_of(every)
        if not self.every:
            raise ConfigError(f"{kind}: every={as_code(every)}: pass seconds or '5s', more than 0")
        self._before_add = before_add if self._awaits else job_meta.check_plain(before_add)

    def create_sql(self, dialect: str) -> str:
        """Return the statement that creates the table unless it exists; ``dialect`` is sqlite, postgresql or mysql."""
        if dialect not in _TYPES:
            raise ConfigError(f"create_sql({as_code(dialect)}): pass one of {', '.join(_TYPES)}")
        text, end = _TYPES[dialect]
        columns = (
            "id VARCHAR(64) NOT NULL PRIMARY KEY CHECK (id <> ''), added_at VARCHAR(32) NOT NULL, "
            f"job VARCHAR(1000) NOT NULL, data {text} NOT NULL, options {text} NOT NULL, declared {text}, error {text}"
        )
        return f"CREATE TABLE IF NOT EXISTS {self.table} ({columns}){end}"

    def relay(self, scheduler: Scheduler) -> int:
        """Move all jobs that are in the table now to the store of the scheduler, and return their number.

        For tests and programs without a node: the leading node with ``--outbox`` does it by itself.
        """
        with closing(Relay(self.connect, self.table, scheduler)) as relay:
            return relay.move()

    @property
    def _insert_sql(self) -> str:
        names = Row._fields
        return f"INSERT INTO {self.table} ({', '.join(names)}) VALUES ({', '.join(f':{name}' for name in names)})"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.table}>"


class Outbox(OutboxTable):
    """A table of new jobs in a database of the application.

    ``connect`` takes no argument and returns a connection to that database, for the relay: of a DB-API driver, of
    SQLAlchemy (``engine.connect``) or of Django (``lambda: connection``). The relay looks for rows each ``every``
    seconds. ``before_add`` is called with a ``NewJob`` before each job is added, as that of a ``Scheduler`` is. Raises
    ``ConfigError``.
    """

    def add_job(
        self,
        /,
        job: Addable[Data, Result],
        data: Data = NO_DATA,
        *,
        session: object,
        **options: Unpack[JobOptions],
    ) -> JobId:
        """Add a job in the open transaction of ``session``, and return the id that it has once it is in the store.

        ``session`` is a connection of a DB-API driver, a ``Session`` or ``Connection`` of SQLAlchemy, or
        ``django.db.connection``. Job, data and options are those of ``Scheduler.add_job``; relative times count from
        now. Raises ``InvalidJob`` or one of its kinds before anything is inserted, and errors of your database as they
        are. The store need not be reachable.
        """
        every = job_meta.completed(self._before_add, job, data, options)
        return self._insert([_added(job, data, every, host_time())], session)[0]

    def add_jobs(self, jobs: Iterable[Entry], *, session: object) -> list[JobId]:
        """Add many jobs, each ``(job, data)`` or ``(job, data, options)``, as ``add_job`` does; return their ids.

        Nothing is inserted if one of them is invalid.
        """
        return self._insert(_all_added(job_meta.completed_entries(self._before_add, jobs)), session)

    def _insert(self, added: Sequence[tuple[Row, JobId]], session: object) -> list[JobId]:
        connections.insert(session, self._insert_sql, [row._asdict() for row, _ in added])
        return [id for _, id in added]


class AsyncOutbox(OutboxTable):
    """An ``Outbox`` whose jobs are added with ``await``, in the transaction of an asynchronous session.

    ``connect`` still returns a blocking connection: the relay is a process of its own. ``before_add`` may be a
    coroutine function.
    """

    _awaits = True

    async def add_job(
        self,
        /,
        job: Addable[Data, Result],
        data: Data = NO_DATA,
        *,
        session: object,
        **options: Unpack[JobOptions],
    ) -> JobId:
        """Add a job in the open transaction of ``session``, as ``Outbox.add_job`` does.

        ``session`` is an ``AsyncSession`` or ``AsyncConnection`` of SQLAlchemy, an ``AsyncConnection`` of psycopg, or a
        connection of another driver of the DB-API whose calls are awaited.
        """
        every = await job_meta.completed_in_loop(self._before_add, job, data, options)
        return (await self._insert([_added(job, data, every, host_time())], session))[0]

    async def add_jobs(self, jobs: Iterable[Entry], *, session: object) -> list[JobId]:
        """Add many jobs, each ``(job, data)`` or ``(job, data, options)``, as ``Outbox.add_jobs`` does."""
        entries = await job_meta.completed_entries_in_loop(self._before_add, jobs)
        return await self._insert(_all_added(entries), session)

    async def _insert(self, added: Sequence[tuple[Row, JobId]], session: object) -> list[JobId]:
        await connections.insert_in_loop(session, self._insert_sql, [row._asdict() for row, _ in added])
        return [id for _, id in added]


def _added(job: Any, data: Any, options: Mapping[str, Any], now: datetime, place: str = "") -> tuple[Row, JobId]:
    """Return the row of a job, and the id that the job will have."""
    order = new_jobs.order(job, data, options, {}, now, place)
    return row_of(order, options, now), order.record.id


def _all_added(entries: Iterable[Any]) -> list[tuple[Row, JobId]]:
    now = host_time()
    return [
        _added(*new_jobs.parts_of(entry, f"jobs[{index}]"), now, f"jobs[{index}].")
        for index, entry in enumerate(entries)
    ]


def relay_endlessly(path: str, scheduler: Scheduler) -> None:
    """Move the rows of the outbox at this path, whenever there are some, until this is interrupted or fails."""
    outbox = find(path)
    with closing(Relay(outbox.connect, outbox.table, scheduler)) as relay:
        while True:
            if not relay.move():
                time.sleep(outbox.every)


def relay_until_empty(path: str, scheduler: Scheduler) -> None:
    """Move the rows of the outbox at this path until none can be moved."""
    outbox = find(path)
    while outbox.relay(scheduler):
        pass


def find(path: str) -> OutboxTable:
    """Return the outbox at ``module:name``; raise ``ConfigError`` for anything else."""
    module, _, name = path.partition(":")
    if not module or not name:
        raise ConfigError(f"--outbox {path}: write MODULE:NAME, such as shop:outbox")
    try:
        imported = importlib.import_module(module)
        value = getattr(imported, name, None)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"--outbox {path}: module {module} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(value, OutboxTable):
        others = [f"{module}:{other}" for other, each in vars(imported).items() if isinstance(each, OutboxTable)]
        says = f"{name} is {as_code(value)}" if hasattr(imported, name) else f"there is no {name}"
        way_out = f"did you mean {some(others)}?" if others else f"write {name} = Outbox(…) there"
        raise ConfigError(f"--outbox {path}: {says} in {module}: {way_out}")
    return value
