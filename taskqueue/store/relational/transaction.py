"""What one write transaction changes: it collects events, counts and topics, and writes them at the end."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import chain, groupby
from operator import attrgetter

from taskqueue.model.ids import JobId
from taskqueue.model.record import Record, Status
from taskqueue.model.timestamps import milliseconds
from taskqueue.store.bell import ENDS, NEWS, PLAIN_RING, STOPS, WORK
from taskqueue.store.codec import event_name
from taskqueue.store.relational import effects, events, limits, waits
from taskqueue.store.relational.columns import CHANGING, COLUMNS, Row, cancel_text, changes, whole_row
from taskqueue.store.relational.counts import ALL
from taskqueue.store.relational.engine import Database, Rows
from taskqueue.store.relational.rows import (
    INSERT,
    INSERT_ALIKE,
    INSERT_SHORT,
    INSERT_SHORTS,
    AlikeRows,
    record,
    short_row,
)

_CHANGE = f"UPDATE jobs SET {CHANGING} WHERE id = ?"
_BY_ID = f"SELECT {COLUMNS} FROM jobs WHERE id = ?"
_CLAIMS = attrgetter("claims")
_STATUS_AND_TIME = attrgetter("status", "created_at")
_NAMES = tuple(status.name.lower() for status in Status)


class Transaction:
    """Runs the statements of one call; ``finish`` is called before the commit, which is the engine's."""

    end_notice = PLAIN_RING
    """The ring that carries the end of a job, if this call ends exactly one job."""
    has_waits: bool | None = None
    """Whether any job waits for another one; None until that has been read."""
    asked: Rows | None = None
    """The answer to that question, if it was asked in advance."""
    _at = 0
    _adds_up = False

    in_transaction = True

    def __init__(self, database: Database, tells_ends: bool) -> None:
        self.execute = database.execute
        self.adds = database.adds
        self.evaluates_data = database.evaluates_data
        self.sends_together = database.sends_together
        self.tells_ends = tells_ends
        self.topics: set[str] = set()
        self._events: list[tuple[list[str], tuple[int, str, int, int]]] = []
        self._counts: dict[tuple[str, int], int] = {}
        self._settled: list[Record] = []
        self._ended_unclaimed: list[Record] = []
        self.ended: deque[Record] = deque()
        """Records whose end has effects on others that are still to be applied."""

    def record(self, id: JobId) -> Record | None:
        """Return the record as it is now, None if there is none."""
        row = self.execute(_BY_ID, (str(id),)).fetchone()
        return None if row is None else record(row)

    def insert(self, new: Record) -> bool:
        """Insert the record and return whether its id and unique key were free."""
        short = short_row(new)
        inserted = self.execute(INSERT, whole_row(new)) if short is None else self.execute(INSERT_SHORT, short)
        if inserted.rowcount == 0:
            return False
        if short is None:
            waits.add(self, new)
        self.status_event(new, milliseconds(new.created_at))
        self.count(new.queue, new.status, 1)
        if new.status > Status.PROCESSING and new.ended_at is not None:
            from taskqueue.store.relational import history  # programs rarely add such records

            history.record(self, milliseconds(new.ended_at), {}, (), (new,))
        self._note_rows(inserted.lastrowid, 1)
        return True

    def insert_all(self, groups: Sequence[AlikeRows]) -> bool:
        """Insert all short rows, or none if the id or unique key of one is taken."""
        if len(groups) == 1:
            inserted = self.execute_all(INSERT_ALIKE, groups[0].own, groups[0].shared)
        else:
            inserted = self.execute_all(INSERT_SHORTS, [(*alike.shared, *own) for alike in groups for own in alike.own])
        if not inserted:
            return False
        self._note_rows(self._last.lastrowid, sum(len(alike.own) for alike in groups))
        for (status, created_at), same in groupby(groups, _STATUS_AND_TIME):
            together = list(same)
            ids = [id for alike in together for id, _ in alike.own]
            self.silent_events(ids, 0, _NAMES[status], created_at, status)
            if status != Status.WAITING:
                for alike in together:
                    self.count(alike.queue, status, len(alike.own))
        self.topics.update((NEWS, WORK))
        return True

    def execute_all(self, statements: Mapping[int, str], rows: Sequence[Row], shared: Row = ()) -> bool:
        """Change all rows, or none if one is not found; ``statements`` are keyed by number of rows, descending.

        The values that all rows share come first in a statement.
        """
        if len(rows) == 1:
            self._last = self.execute(statements[1], (*shared, *rows[0]))
            return self._last.rowcount == 1
        self.execute("SAVEPOINT batch")
        written, changed = 0, []
        for size, statement in statements.items():
            while written + size <= len(rows):
                own = chain.from_iterable(rows[written : written + size])
                self._last = self.execute(statement, (*shared, *own))
                changed.append(self._last)
                written += size
        is_whole = bool(rows) and sum(part.rowcount for part in changed) == len(rows)
        if not is_whole:
            self.execute("ROLLBACK TO batch")
        self.execute("RELEASE batch")
        return is_whole

    def replace(self, before: Record, after: Record, now: datetime) -> None:
        """Put ``after`` in the place of ``before``, which this transaction has read, with its effects."""
        self.queue_changes(before.queue, after.queue)
        self.execute(_CHANGE, (*changes(after), str(after.id)))
        if before.waiting_for:
            waits.end(self, before, after)
        if after.status is not before.status:
            self.status_changed(before.status, after, now)

    def request_cancel(self, asked: Record) -> None:
        """Record a cancel request for a running job."""
        self.execute("UPDATE jobs SET cancel = ? WHERE id = ?", (cancel_text(asked.cancel), str(asked.id)))
        self.topics.add(STOPS)

    def status_changed(self, before: Status, after: Record, now: datetime, *, is_unseen: bool = False) -> None:
        """Count and record the status change, and apply its effects on other records if the record ended."""
        self.count(after.queue, before, -1)
        self.count(after.queue, after.status, 1)
        self._at = milliseconds(now)
        self.status_event(after, self._at)
        if before is Status.PROCESSING:
            self._settled.append(after)
            if after.lane:
                limits.free(self.execute, after, now, is_unseen=is_unseen)
                self.topics.add(WORK)
        elif after.status > Status.PROCESSING:
            self._ended_unclaimed.append(after)
        if after.status > Status.PROCESSING:
            effects.apply(self, after, now)

    def all_done(self, settled: Sequence[Record], now: datetime) -> None:
        """Do the work of ``status_changed`` for claims that are DONE, in one step for all whose end has no effects."""
        self._at = at = milliseconds(now)
        plain = []
        for after in settled:
            if after.lane or after.origin is not None or after.depends_on or waits.exist(self):
                self.status_changed(Status.PROCESSING, after, now)
                continue
            plain.append(after)
        for claims, alike in groupby(plain, _CLAIMS):
            self.silent_events([str(after.id) for after in alike], claims, _NAMES[Status.DONE], at, Status.DONE)
        self._settled += plain
        for queue, records in Counter([after.queue for after in plain]).items():
            self.count(queue, Status.DONE, records)
        self.topics.update((NEWS, ENDS))

    def status_event(self, after: Record, at: int) -> None:
        """Record the event of the record's present status, and collect the topics it rings."""
        self.silent_events([str(after.id)], after.claims, event_name(after), at, after.status)
        self.topics.add(NEWS)
        if after.status <= Status.POSTPONED:
            self.topics.add(WORK)
        elif after.status > Status.PROCESSING:
            self.topics.add(ENDS)

    def silent_events(self, ids: list[str], claims: int, name: str, at: int, status: int) -> None:
        """Record the event of this name for jobs with the same number of claims, without ringing."""
        alike = (claims, name, at, int(status))
        if self._events and self._events[-1][1] == alike:
            self._events[-1][0].extend(ids)
        else:
            self._events.append((ids, alike))

    def waiting_ids(self) -> list[str]:
        """Return the jobs that this call made WAITING."""
        return [id for ids, (*_, status) in self._events if status == Status.WAITING for id in ids]

    def queue_changes(self, before: str, after: str) -> None:
        """Count a record that is about to change its queue, since it must be counted in the old queue first."""
        if before != after:
            self.add_up()
            self._counts[(before, ALL)] = self._counts.get((before, ALL), 0) - 1
            self._counts[(after, ALL)] = self._counts.get((after, ALL), 0) + 1

    def add_up(self) -> None:
        """Add up the history, which also counts all records; this must happen before any of them is removed."""
        from taskqueue.store.relational import history  # imported here: an add rarely needs it

        history.add_up(self)

    def removed(self, queue: str, status: Status) -> None:
        """Count a final record that was removed."""
        self.count(queue, status, -1)
        self._counts[(queue, ALL)] = self._counts.get((queue, ALL), 0) - 1

    def _note_rows(self, last: int | None, rows: int) -> None:
        """Note that new rows must be counted, many of them at once."""
        if last is not None and last // self.adds.APART != (last - rows) // self.adds.APART:
            self._adds_up = True

    def count(self, queue: str, status: int, records: int) -> None:
        """Add to the tally of this queue and status.

        Running records are counted through their index, and waiting ones are the rest of all records of their queue: a
        counter would cost every job a page more when it is added, and again when it is claimed.
        """
        if status != Status.WAITING and status != Status.PROCESSING:
            key = (queue, int(status))
            self._counts[key] = self._counts.get(key, 0) + records

    def finish(self) -> None:
        """Write events, counts and figures, as the last statements before the commit."""
        for ids, alike in self._events:
            events.write(self.execute, ids, *alike)
        if self._counts or self._settled:
            from taskqueue.store.relational import history  # imported here: a program that adds jobs settles none

            history.record(self, self._at, self._counts, self._settled, self._ended_unclaimed)
        if self._adds_up:
            self.add_up()
        if len(self._settled) != 1 or self._ended_unclaimed:
            self.end_notice = PLAIN_RING
