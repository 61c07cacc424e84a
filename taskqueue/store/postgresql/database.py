"""A connection of PostgreSQL's driver, and the translation of the relational store's statements that run on it."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Generator, Mapping, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg import errors
from psycopg.pq import TransactionStatus
from psycopg.types.string import TextLoader

from taskqueue.store.postgresql.message import Answer as Rows
from taskqueue.store.postgresql.message import Message
from taskqueue.store.postgresql.url import PostgreSQLUrl
from taskqueue.store.relational.counts import RowCounts
from taskqueue.store.relational.engine import Execute
from taskqueue.store.relational.events import LENGTH

_NOTE = """
INSERT INTO counted (one, number, job)
SELECT 1, rowid, id FROM jobs WHERE rowid IS NOT NULL ORDER BY rowid DESC LIMIT 1
ON CONFLICT (one) DO UPDATE SET number = excluded.number, job = excluded.job
"""


class PostgreSQLCounts(RowCounts):
    """Counts rows by the numbers that the store gives them."""

    def __init__(self) -> None:
        super().__init__("created_at / 60000 * 60000")

    def last_counted(self, execute: Execute) -> int:
        """Return the number of the last counted row, 0 if there is none."""
        row = execute("SELECT number FROM counted").fetchone()
        return 0 if row is None else int(row[0])

    def note_last(self, execute: Execute) -> None:
        """Note that all present rows are counted."""
        execute(_NOTE)


ANSWERS_WITHIN = 60.0
"""After this many seconds without an answer to a statement, the connection is closed."""

_LOOKS_EVERY = 0.1
"""How often, in seconds, a wait for the server looks at the clock and at signals."""

# A server resets its statistics when it recovers from a crash, even if only one of its sessions has crashed.
_SERVER = """
SELECT concat_ws(' ', pg_postmaster_start_time(), stats_reset), has_table_privilege(%s, 'UPDATE, DELETE, TRUNCATE')
FROM pg_stat_wal
"""

# The planner cannot see which few of many jobs an index has, and would read the whole table instead. A table without an
# index for a query then seems dear enough to it to compile the query first, which takes longer than the query.
_READS_INDEXES = "SET enable_seqscan = off; SET random_page_cost = 1.1; SET jit = off"

# Up to ``numbered`` no row is left. Beside an old snapshot the index keeps their dead versions, and reading those takes
# long. A sequence that is behind was started again.
_NOT_YET = """
number > (
    SELECT CASE WHEN coalesce(pg_sequence_last_value(CAST(:sequence AS REGCLASS)), 0) < :numbered THEN 0
        ELSE :numbered END
)
"""
_NUMBER = f"""
WITH recorded AS (
    DELETE FROM unnumbered WHERE {_NOT_YET} RETURNING number AS place, job, claims, name, at, status, about
),
numbered AS (
    INSERT INTO events (number, job, claims, name, at, status, about)
    SELECT last_number + sum({LENGTH}) OVER ordered, job, claims, name,
        greatest(last_at, max(at) OVER ordered), status, about
    FROM recorded CROSS JOIN (
        SELECT coalesce((SELECT max(number) FROM events), 0) AS last_number,
            (SELECT at FROM events ORDER BY number DESC LIMIT 1) AS last_at
    ) AS last
    WINDOW ordered AS (ORDER BY place)
)
SELECT coalesce(pg_sequence_last_value(CAST(:sequence AS REGCLASS)), 0),
    EXISTS (SELECT 1 FROM recorded WHERE status > 2)
"""
"""Numbers the events that have no number yet, in their order; their times are never before that of the last event.

Returns up to which number ``unnumbered`` has no row after the commit, and whether it had ends of jobs.
"""

_AGE = f"""
SELECT CAST(extract(epoch FROM clock_timestamp() - since) AS DOUBLE PRECISION) FROM unnumbered
WHERE {_NOT_YET} AND NOT CAST(current_setting('transaction_read_only') AS BOOLEAN) ORDER BY number LIMIT 1
"""
_WAITED = "SELECT CAST(extract(epoch FROM clock_timestamp() - transaction_timestamp()) AS DOUBLE PRECISION)"

_HAS_ARRIVALS = """
SELECT EXISTS (SELECT 1 FROM jobs WHERE rowid IS NULL) AND NOT CAST(current_setting('transaction_read_only') AS BOOLEAN)
"""

# A user without rights sees only the pid and the name of the application.
_HOLDER = """
SELECT concat_ws(' ', 'the lock is held by pid', pid, nullif(quote_literal(application_name), quote_literal('')),
    'from ' || coalesce(host(client_addr), 'the host of the server'), 'state ' || quote_literal(state),
    to_char(xact_start AT TIME ZONE 'UTC', '"since" YYYY-MM-DD HH24:MI:SS "UTC"'))
FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE relation = to_regclass(%s) AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND granted AND mode <> 'AccessShareLock' AND pid <> pg_backend_pid()
ORDER BY xact_start LIMIT 1
"""

Answer = TypeVar("Answer")


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that gives up if the server does not answer in time."""

    answers_within = ANSWERS_WITHIN

    def wait(self, gen: Generator[Any, Any, Answer], *args: Any, **options: Any) -> Answer:  # noqa: ARG002
        """Run the steps of the driver until they end, as the driver does, but no longer than ``answers_within``."""
        return super().wait(_bounded(gen, self.pgconn, self.answers_within), _LOOKS_EVERY)


def _bounded(steps: Generator[Any, Any, Answer], pgconn: Any, seconds: float) -> Generator[Any, Any, Answer]:
    """Yield what the steps yield; when they have waited too long, close the connection and raise the driver's error."""
    until = time.monotonic() + seconds
    try:
        step = next(steps)
        while True:
            ready = yield step
            if not ready and time.monotonic() > until:
                pgconn.finish()
                raise psycopg.OperationalError(f"no answer within {seconds:g} s")
            step = steps.send(ready)
    except StopIteration as last:
        answer: Answer = last.value
        return answer


def connected(address: PostgreSQLUrl) -> psycopg.Connection[Any]:
    """Return a connection to the server at this address that commits each statement, in any state of the store."""
    options: dict[str, Any] = address.options
    return psycopg.Connection.connect(autocommit=True, prepare_threshold=None, **options)


def is_pooled(raw: psycopg.Connection[Any]) -> bool:
    """Return whether the session is not the one that the server opened for this connection, as with a pooler."""
    [pid] = raw.execute("SELECT pg_backend_pid()").fetchone() or (0,)
    return bool(pid != raw.info.backend_pid)


class PostgreSQLDatabase:
    """One connection and the schema that its statements are about."""

    adds: RowCounts = PostgreSQLCounts()
    evaluates_data = False
    sends_together = True

    def __init__(self, address: PostgreSQLUrl) -> None:
        options: dict[str, Any] = address.options
        self.raw = BoundedConnection.connect(autocommit=True, prepare_threshold=None, **options)
        self.raw.adapters.register_loader("json", TextLoader)  # the store reads JSON itself
        self._message = Message(self.raw)
        self.schema = address.schema
        self._begun: Rows | None = None
        self._has_arrivals = False
        self._numbering: Rows
        self._numbered = self._up_to = 0
        self.numbers_ends = False
        """Whether the last write transaction gives numbers to ends of jobs."""
        self.waited = 0.0
        """For how many seconds the last plain statement alone has waited for the lock."""
        self.transaction = ""
        """The number that the server gave the last write transaction."""
        self.run = ""
        """Identifies the run of the server; it changes with each crash."""
        self.may_lock = True
        """Whether the user has the right to take the store's lock."""

    def execute(self, statement: str, values: Any = ()) -> Rows:
        """Run a statement of the relational store, at the latest when its result is asked for."""
        return self._message.add(translated(statement, self.schema), values)

    def ask(self, statement: str, values: Mapping[str, Any]) -> Rows:
        """Run a statement of PostgreSQL's own, with ``%(name)s``, at the latest when its result is asked for."""
        return self._message.add(statement, values)

    def begin_without_lock(self, statements: Sequence[str]) -> None:
        """Begin a transaction that only adds jobs with these statements."""
        self._message.add_plain(statements)

    def begin(self, statements: Sequence[str]) -> None:
        """Begin a write transaction with these statements, the last of which reads its number."""
        *settings, number = statements
        self._message.add_plain(settings)
        self._numbering = self._number_events()
        self._begun = self._message.add(number)

    def read_number(self) -> bool:
        """Note the number of the transaction, for looking up its end; return what else was read with it.

        That is, whether there are jobs that were added without the lock and not yet taken in.
        """
        if self._begun is not None:
            [self.transaction, self._has_arrivals, _] = self._begun.fetchone()
            [self._up_to, self.numbers_ends] = self._numbering.fetchone()
            self._begun = None
        return self._has_arrivals

    def plainly(
        self, settings: Sequence[str], statement: str, values: Mapping[str, Any], last: Sequence[str], *, is_alone: bool
    ) -> list[Any]:
        """Run a plain statement as one message, with ``last`` after its COMMIT, and return its rows.

        If it has the lock alone, it numbers events, too.
        """
        self._message.add_plain(settings)
        waited = self.execute(_WAITED) if is_alone else None
        answer = self.execute(statement, values)
        numbering = self._number_events() if is_alone else None
        self._message.add_plain(["COMMIT", *last])
        self._message.send()
        if waited is not None and numbering is not None:
            [self.waited] = waited.fetchone()
            [self._up_to, self.numbers_ends] = numbering.fetchone()
            self._note_numbered()
        return answer.fetchall()

    def age_of_events(self) -> float | None:
        """Return for how many seconds the first event without a number has had none; None if all have numbers."""
        row = self.execute(_AGE, self._unnumbered()).fetchone()
        return None if row is None else float(row[0])

    def has_arrivals(self) -> bool:
        """Return whether there are jobs to take in, which a standby never can; sends the waiting statements."""
        [has_arrivals] = self.execute(_HAS_ARRIVALS).fetchone()
        return bool(has_arrivals)

    def commit(self, last: Sequence[str]) -> None:
        """Send the waiting statements, these statements and COMMIT as one message."""
        self._message.add_plain([*last, "COMMIT"])
        self._message.send()
        self._note_numbered()

    def send(self) -> None:
        """Send the statements that wait."""
        self._message.send()

    def note_server(self) -> None:
        """Note which server answers, and avoid what a pooler cannot keep for a transaction."""
        row = self.raw.execute(_SERVER, (f"{self.schema}.store",)).fetchone()
        self.run, self.may_lock = row or ("", True)
        if is_pooled(self.raw):
            self._message.prepares = False
        else:
            self.raw.execute(_READS_INDEXES)

    def fate(self, transaction: str) -> str | None:
        """Return whether a transaction that has ended was ``committed`` or ``aborted``; None if it is not known."""
        try:
            [fate] = self._message.add("SELECT pg_xact_status(%s::xid8)", (transaction,)).fetchone()
        except errors.InvalidParameterValue:  # its number lies in the future: a crash has lost it
            return "aborted"
        return None if fate is None else str(fate)

    def holder(self) -> str:
        """Return in words which session holds the store's lock and since when; an empty text if none does."""
        [words] = self.raw.execute(_HOLDER, (f"{self.schema}.store",)).fetchone() or [""]
        return str(words)

    def _number_events(self) -> Rows:
        return self._message.queue(translated(_NUMBER, self.schema), self._unnumbered())

    def _note_numbered(self) -> None:
        """Note up to where events have numbers; a pooler may go on with another server, which has lost the last."""
        if self._message.prepares:
            self._numbered = self._up_to

    def _unnumbered(self) -> Mapping[str, object]:
        return {"sequence": f"{self.schema}.unnumbered_number_seq", "numbered": self._numbered}

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open, even a failed one, or will be after the waiting statements."""
        for text in reversed(self._message.texts):
            if text == "ROLLBACK" or text.startswith("BEGIN "):
                return text != "ROLLBACK"
        return self.raw.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR)

    def undo(self) -> None:
        """Roll back an open transaction; a lost connection has done so already."""
        self._up_to = self._numbered
        self._message.forget()
        if self.raw.info.transaction_status is TransactionStatus.ACTIVE:  # an exception ended the wait for an answer
            self.raw.close()
        if not self.raw.closed and self.in_transaction:
            self.raw.execute("ROLLBACK")


TABLES = (
    *("jobs", "slots", "waits", "tally", "logs", "counted", "history", "turns", "events", "plans", "controls"),
    *("leases", "audit", "store", "unnumbered"),
)
NUMBERED = "events|audit"
"""The tables whose rows are numbered in the order of commits: the greatest number plus one, under the store's lock."""

NUMBERS = (
    *("status", "forced", "rank", "ready_at", "claims", "failures", "crashes", "priority", "created_at", "started_at"),
    *("ended_at", "expires_at", "progress"),
)
_STEP = re.compile(r'"[^"]*"|\w+')
"""A step of the path to a value in JSON."""

_LIST = r"json_each\((\?|:\w+|'[^']*')\)"
_RULES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"^\s*BEGIN\s*$", "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"),
        (r"\b(?:NOT INDEXED|INDEXED BY \w+)", ""),
        (r"(?<=[\s(])\+(?=[a-z])", ""),
        (r"\) AS (chosen CROSS JOIN|keys ORDER BY)\b", r" OFFSET 0) AS \1"),  # is planned separately
        (r"\bCROSS JOIN (\w+(?: AS \w+)?) ON\b", r"JOIN \1 ON"),
        (
            rf"INSERT INTO ({NUMBERED}) \((?!number)([^)]*)\)\s*VALUES \(",
            r"INSERT INTO \1 (number, \2) VALUES ((SELECT coalesce(max(number), 0) + 1 FROM \1), ",
        ),
        (
            rf"(\b(?:{'|'.join(NUMBERS)})|1000\.0 END\)|ELSE 0 END\)) IN \(SELECT value FROM {_LIST}\)",
            r"\1 IN (SELECT json_array_elements_text(\2)::numeric)",
        ),
        (rf"\browid IN \(SELECT value FROM {_LIST}\)", r"rowid IN (SELECT json_array_elements_text(\1)::bigint)"),
        (rf"SELECT value AS number FROM {_LIST}", r"SELECT json_array_elements_text(\1)::bigint AS number"),
        (
            rf"FROM {_LIST} AS these JOIN jobs ON jobs\.rowid",
            r"FROM (SELECT json_array_elements_text(\1)::bigint AS value) AS these JOIN jobs ON jobs.rowid",
        ),
        (rf"FROM {_LIST} AS (\w+)", r"FROM (SELECT json_array_elements_text(\1) AS value) AS \2"),
        (rf"SELECT value FROM {_LIST}", r"SELECT json_array_elements_text(\1)"),
        (
            r"json_each\(CASE WHEN json_valid\(([\w.]+)\) THEN \1 END\)(?: AS (\w+))?",
            lambda found: (
                f"(SELECT json_array_elements_text(CASE WHEN json_typeof({found[1]}) = 'array' THEN {found[1]} END) "
                f"AS value) AS {found[2] or 'element'}"
            ),
        ),
        (
            r"\(CASE WHEN json_valid\(([\w.]+)\) THEN json_extract\(\1, '\$\.([^']+)'\) END\)",
            lambda found: f"({found[1]} #>> '{{{','.join(_STEP.findall(found[2]))}}}')",
        ),
        # Otherwise each job is looked for among all that run: their index seems the smallest.
        (r"\b(id = \S+ AND status) = 2\b", r"\1 BETWEEN 2 AND 2"),
        (r"\binstr\(", "strpos("),
        (r"\w+ < x''", "TRUE"),
        (r"\b(started_at|ended_at|claims|failures|crashes|progress_at) = new\.(column\d+)", r"\1 = new.\2::bigint"),
        (r"\bprogress = new\.(column\d+)", r"progress = new.\1::double precision"),
        (r"\btypeof\(([\w.]+)\) = '\w+'", r"\1 IS NOT NULL"),
        (r"\btypeof\(([\w.]+)\) != '\w+'", r"\1 IS NULL"),
        (r"\bifnull\(", "coalesce("),
        (r"(\S+) IS NOT (\?|:\w+)", r"\1 IS DISTINCT FROM \2"),
        (r"(\S+) IS (\?|:\w+)", r"\1 IS NOT DISTINCT FROM \2"),
    )
)
_TEXTS = re.compile(r"('[^']*')")
_TABLE = re.compile(rf"\b(FROM|JOIN|INTO|UPDATE|TABLE|ON) ({'|'.join(TABLES)})\b(?!\.)")
_NAME = re.compile(r"(?<![:\w]):([a-z_]\w*)")


@functools.lru_cache(maxsize=2048)
def translated(statement: str, schema: str) -> str:
    """Return the statement with the tables of this schema, as PostgreSQL and its driver read it."""
    for pattern, replacement in _RULES:
        statement = pattern.sub(replacement, statement)
    statement = _TABLE.sub(rf"\1 {schema}.\2", statement).replace("%", "%%")
    parts = _TEXTS.split(statement)
    parts[::2] = (_NAME.sub(r"%(\1)s", part).replace("?", "%s") for part in parts[::2])
    return "".join(parts)
