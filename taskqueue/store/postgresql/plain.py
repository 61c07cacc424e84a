"""Claims and outcomes that concern no other rows than those of their jobs: each is one statement in one message.

Many of them run at once, as they share the store's lock. What needs a decision about other rows goes the general way,
whose transactions hold the lock alone. Events get no numbers here (``unnumbered``): whoever holds the lock alone gives
them, so that no number becomes visible after a greater one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from operator import itemgetter

from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.recovered_copy import origins_of
from taskqueue.model.log_lines import RUNS_KEPT
from taskqueue.model.record import Holder, Status
from taskqueue.model.schedules import LATEST
from taskqueue.model.timestamps import milliseconds, moment
from taskqueue.store import SCHEMA_VERSION, Claim, ClaimRequest, Settlement
from taskqueue.store.bell import ENDS, NEWS
from taskqueue.store.postgresql.connection import Connection
from taskqueue.store.postgresql.database import PostgreSQLDatabase
from taskqueue.store.relational import history
from taskqueue.store.relational.claims import CLAIMED, LOOK, ClaimTerms, end_nameless
from taskqueue.store.relational.columns import COLUMNS, LARGEST, NAMES, instant
from taskqueue.store.relational.engine import Sync
from taskqueue.store.relational.events import AT_ONCE
from taskqueue.store.relational.rows import records_of
from taskqueue.store.relational.settlements import DONE, done_values, is_plainly_done
from taskqueue.store.relational.transaction import Transaction

_RECORD = """
INSERT INTO unnumbered (job, claims, name, at, status, about)
SELECT CASE WHEN count(*) = 1 THEN min(id) END, claims, '{name}', CAST(:at AS BIGINT), {status},
    CASE WHEN count(*) > 1 THEN string_agg(id, ' ' ORDER BY {order}) END
FROM {rows} WHERE length(id) = 24 GROUP BY claims
"""
_WAITS = f"status = 0 AND queue = (SELECT queue FROM look) AND forced = 0 AND rank <= {LARGEST}"
# ``chosen`` is materialized: joined, it could be run twice, and lock more rows than its limit. Rows that it skips may
# still wait afterwards: another claim has locked them, and may take fewer of them, or end with its session.
CLAIM = f"""
WITH times (soonest, first_to_expire, lane, first_queue, last_queue, is_controlled) AS MATERIALIZED ({LOOK}),
look AS MATERIALIZED (
    SELECT soonest, CASE WHEN coalesce(soonest > :at, TRUE) AND coalesce(first_to_expire > :at, TRUE) AND lane IS NULL
        AND NOT is_controlled AND NOT EXISTS (SELECT 1 FROM jobs WHERE rowid IS NULL)
        AND (SELECT schema FROM store) = {SCHEMA_VERSION}
        AND (CAST(:queue AS TEXT) IS NOT NULL OR first_queue IS NULL OR first_queue = last_queue)
        AND NOT (:forced > 0 AND EXISTS (
            SELECT 1 FROM jobs WHERE status = 0 AND queue = coalesce(CAST(:queue AS TEXT), first_queue) AND forced = 1
        ))
        THEN coalesce(CAST(:queue AS TEXT), first_queue, '') END AS queue
    FROM times
),
chosen AS MATERIALIZED (
    SELECT id, rank, CASE WHEN CAST(:data AS BIGINT) IS NOT NULL THEN length(data) ELSE 0 END AS size FROM jobs
    WHERE {_WAITS}
    ORDER BY rank, id LIMIT :pooled FOR UPDATE SKIP LOCKED
),
fitting AS MATERIALIZED (
    SELECT id FROM (
        SELECT id, row_number() OVER ordered AS place, sum(size) OVER ordered AS total
        FROM chosen WINDOW ordered AS (ORDER BY rank, id ROWS UNBOUNDED PRECEDING)
    ) AS summed WHERE place <= :free OR total <= coalesce(CAST(:data AS BIGINT), {LARGEST})
),
taken AS (
    UPDATE jobs SET {", ".join(f"{name} = {value}" for name, value in CLAIMED.items())}
    WHERE id = ANY (ARRAY(SELECT id FROM fitting)) RETURNING {COLUMNS}
),
recorded AS ({_RECORD.format(name="processing", status=int(Status.PROCESSING), order="rank, id", rows="taken")})
SELECT look.queue, soonest, (SELECT count(*) FROM chosen) > (SELECT count(*) FROM fitting)
        OR CASE WHEN (SELECT count(*) FROM chosen) < :pooled THEN EXISTS (
            SELECT 1 FROM jobs WHERE {_WAITS} AND id NOT IN (SELECT id FROM chosen)
        ) ELSE FALSE END, taken.*
FROM look LEFT JOIN taken ON TRUE
"""
_FENCE = "claims = new.column6 AND seat = :seat AND incarnation = :incarnation AND cancel IS NULL"
_ALL_DONE = "(SELECT count(*) FROM done) = :number"
# All or none: the figures of the turn are those of all. A row may change after the snapshot, while the statement waits
# for another one of this node whose connection was lost: then the turn has no time, so that the statement fails.
SETTLE = f"""
WITH new AS MATERIALIZED (
    SELECT * FROM unnest(
        CAST(:started AS BIGINT[]), CAST(:ended AS BIGINT[]), CAST(:attempts AS TEXT[]), CAST(:results AS TEXT[]),
        CAST(:ids AS TEXT[]), CAST(:claims AS BIGINT[]), CAST(:lines AS TEXT[])
    ) WITH ORDINALITY AS new (column1, column2, column3, column4, column5, column6, column7, column8)
),
fitting AS MATERIALIZED (
    SELECT id FROM new CROSS JOIN jobs WHERE id = new.column5 AND status = 2 AND {_FENCE}
        AND (SELECT job FROM waits WHERE awaited = jobs.id LIMIT 1) IS NULL
),
done AS (
    {DONE.format(*(f"new.column{number}" for number in range(1, 7)), ":seat", ":incarnation", from_rows="FROM new")}
        AND (SELECT count(*) FROM fitting) = :number
    RETURNING jobs.id, jobs.claims, new.column7 AS lines, new.column8 AS place
),
recorded AS ({_RECORD.format(name="done", status=int(Status.DONE), order="place", rows="done")}),
logged AS (
    INSERT INTO logs (job, claims, lines) SELECT id, claims, lines FROM done WHERE lines IS NOT NULL
    ON CONFLICT (job, claims) DO UPDATE SET lines = excluded.lines
),
turn AS (
    INSERT INTO turns (at, counts, figures)
    SELECT CASE WHEN {_ALL_DONE} THEN CAST(:minute AS BIGINT) END, CAST(:counts AS TEXT), CAST(:figures AS TEXT)
    WHERE EXISTS (SELECT 1 FROM done)
)
SELECT {_ALL_DONE}, ARRAY(SELECT column5 FROM new WHERE column5 NOT IN (SELECT id FROM fitting))
"""
_WAS_DONE = "SELECT 1 FROM jobs WHERE id = ? AND status BETWEEN 3 AND 3 AND claims = ? AND ended_at = ?"
_rank_and_id = itemgetter(NAMES.index("rank"), NAMES.index("id"))

TRIES = 2
"""How often outcomes are tried, the second time without those for which other jobs wait."""


def claim(connection: Connection, holder: Holder, demand: ClaimRequest, now: datetime, until: datetime) -> Claim | None:
    """Claim jobs of one queue as ``Store.claim``; None if the general way must decide."""
    queue = next(iter(demand.queues), None)
    if not 0 < demand.pooled <= AT_ONCE or len(demand.queues) > 1 or demand.queues.get(queue or "") is not None:
        return None
    terms = ClaimTerms(milliseconds(until), holder.seat, holder.incarnation, milliseconds(now))
    demanded = {"pooled": demand.pooled, "forced": demand.forced, "data": demand.data, "free": demand.free}
    values = {**terms._asdict(), **demanded, "queue": queue}
    answer = connection.plainly(Sync.NORMAL, CLAIM, values)
    if not answer or answer[0][0] is None:
        return None
    _, soonest, has_more, *_ = answer[0]
    rows = sorted((row[3:] for row in answer if row[3] is not None), key=_rank_and_id)
    next_at = None if soonest is None else moment(min(soonest, milliseconds(LATEST)))
    if not rows and next_at is not None and demand.due_by is not None and next_at <= demand.due_by:
        return None
    records = records_of(rows)
    if len(records) < len(rows):
        connection.write(Sync.NORMAL, partial(_end_nameless, terms))
    return Claim(records=records, next_at=next_at, has_more=has_more)


def settle(
    connection: Connection, settlements: Sequence[Settlement], now: datetime, in_doubt: set[JobId]
) -> set[JobId]:
    """Write outcomes as ``Store.settle`` and return the ids of the written ones; the others go the general way.

    An outcome for which another job waits is left out of a second try. Without an answer, ids stay ``in_doubt``.
    """
    plain = [each for each in settlements if each.holder == settlements[0].holder and _is_plain(each)]
    for _ in range(TRIES):
        if not plain or len(plain) > AT_ONCE or len({settlement.after.id for settlement in plain}) < len(plain):
            break
        ids = {settlement.after.id for settlement in plain}
        new = ids - in_doubt
        in_doubt |= new
        answer = connection.plainly(Sync.FULL, SETTLE, _values(plain, milliseconds(now)), (NEWS, ENDS))
        if answer is None:
            break
        in_doubt -= new
        [(are_done, refused)] = answer
        if are_done:
            return ids
        plain = [settlement for settlement in plain if str(settlement.after.id) not in refused]
    return set()


def done_before(work: Transaction, settlements: Sequence[Settlement]) -> set[JobId]:
    """Return which of these plain outcomes the store has: it may have written them when its answer was lost."""
    asked = [
        (id, work.execute(_WAS_DONE, (str(id), settlement.claims, instant(settlement.after.ended_at))))
        for settlement in settlements
        if _is_plain(settlement)
        for id in (settlement.after.id,)
    ]
    return {id for id, answer in asked if answer.fetchone()}


def _is_plain(settlement: Settlement) -> bool:
    """Return whether the outcome concerns no other row, unless another job waits for it."""
    after = settlement.after
    if settlement.lease_end is not None or settlement.defined is not None or not is_plainly_done(after):
        return False
    if settlement.lines is not None and settlement.claims > RUNS_KEPT:
        return False
    return not (after.lane or after.origin is not None or after.depends_on or origins_of(after))


def _values(plain: Sequence[Settlement], at: int) -> dict[str, object]:
    """Return the values of the statement that writes these outcomes."""
    ended = [settlement.after for settlement in plain]
    started, ended_at, attempts, results = zip(*map(done_values, ended), strict=True)
    counts = {(queue, int(Status.DONE)): jobs for queue, jobs in Counter(after.queue for after in ended).items()}
    turn = history.turn(at, counts, ended, ())
    minute, counts_text, figures = turn or (None, None, None)
    return {
        "started": list(started),
        "ended": list(ended_at),
        "attempts": list(attempts),
        "results": list(results),
        "ids": [str(after.id) for after in ended],
        "claims": [settlement.claims for settlement in plain],
        "lines": [settlement.lines for settlement in plain],
        "seat": plain[0].holder.seat,
        "incarnation": plain[0].holder.incarnation,
        "number": len(plain),
        "at": at,
        "minute": minute,
        "counts": counts_text,
        "figures": figures,
    }


def _end_nameless(terms: ClaimTerms, database: PostgreSQLDatabase) -> tuple[Transaction, None]:
    work = Transaction(database, tells_ends=False)
    end_nameless(work, terms)
    work.finish()
    return work, None
