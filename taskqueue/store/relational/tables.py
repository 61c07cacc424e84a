"""The tables of a relational store, in the words of SQLite; other engines replace the types."""

from __future__ import annotations

from taskqueue.model.ids import ID_TEXT, WORKFLOW
from taskqueue.store.relational.columns import in_json

_ID_TEXT, _WORKFLOW = in_json("given", ID_TEXT), in_json("given", WORKFLOW)

# Small and often changed columns come first: SQLite reads a row from the left, and not past what was asked for.
# Each partial index serves one question and holds only the rows it is about: a claim never meets a job
# that is postponed or finished. jobs_postponed keeps apart jobs that wait for other jobs, which no time promotes.
# forced is 1 for a job with a child of its own, plus 2 for one with limits: these stand apart in jobs_waiting, and
# claims find them in jobs_limited by their lanes, so that those of a full lane are never met.
# Every index adds a page to each commit that touches it (measured: 4 us), so no question has an index of its own if
# another index can answer it: a claim from every queue merges the ranges of queues with waiting jobs. jobs_created is
# for people who list the newest jobs: without it they wait 1.5 s if there are a million jobs.
TABLES = f"""
CREATE TABLE jobs (
    id TEXT PRIMARY KEY NOT NULL,
    status INTEGER NOT NULL,
    cause TEXT NOT NULL,
    queue TEXT NOT NULL,
    forced INTEGER NOT NULL,
    rank INTEGER NOT NULL,
    ready_at INTEGER,
    seat TEXT,
    incarnation TEXT,
    claims INTEGER NOT NULL DEFAULT 0,
    failures INTEGER NOT NULL DEFAULT 0,
    crashes INTEGER NOT NULL DEFAULT 0,
    priority INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    started_at INTEGER,
    ended_at INTEGER,
    expires_at INTEGER,
    unique_key TEXT,
    waiting_for TEXT,
    cancel TEXT,
    unloadable_since INTEGER,
    unloadable_times INTEGER NOT NULL DEFAULT 0,
    progress REAL NOT NULL DEFAULT 0.0,
    progress_message TEXT NOT NULL DEFAULT '',
    progress_at INTEGER,
    job TEXT NOT NULL,
    options TEXT,
    given TEXT,
    tags TEXT,
    error TEXT,
    attempts TEXT,
    state TEXT,
    result TEXT,
    lane TEXT,
    parent TEXT,
    depends_on TEXT,
    origin TEXT,
    cursor TEXT,
    course TEXT,
    data TEXT NOT NULL,
    period TEXT,
    origins TEXT
);
CREATE INDEX jobs_waiting ON jobs (queue, forced, rank, id) WHERE status = 0;
CREATE INDEX jobs_limited ON jobs (lane, queue, forced, rank, id) WHERE status = 0 AND lane IS NOT NULL;
CREATE INDEX jobs_postponed ON jobs ((waiting_for IS NOT NULL), ready_at) WHERE status = 1;
CREATE INDEX jobs_running ON jobs (seat) WHERE status = 2;
CREATE INDEX jobs_ended ON jobs (status, ended_at) WHERE status > 2;
CREATE INDEX jobs_expiring ON jobs (expires_at) WHERE expires_at IS NOT NULL AND status < 2 AND started_at IS NULL;
CREATE UNIQUE INDEX jobs_unique ON jobs (unique_key) WHERE unique_key IS NOT NULL AND status <= 2;
CREATE UNIQUE INDEX jobs_periods ON jobs (period) WHERE period IS NOT NULL;
CREATE INDEX jobs_with_text ON jobs ({_ID_TEXT}) WHERE {_ID_TEXT} IS NOT NULL;
CREATE INDEX jobs_of_workflows ON jobs ({_WORKFLOW}, id) WHERE {_WORKFLOW} IS NOT NULL;
CREATE INDEX jobs_created ON jobs (created_at, id);
CREATE INDEX jobs_children ON jobs (parent) WHERE parent IS NOT NULL;
CREATE TABLE slots (
    key TEXT NOT NULL, job TEXT NOT NULL, claims INTEGER NOT NULL, until INTEGER, PRIMARY KEY (key, job, claims)
) WITHOUT ROWID;
CREATE TABLE waits (awaited TEXT NOT NULL, job TEXT NOT NULL, PRIMARY KEY (awaited, job)) WITHOUT ROWID;
CREATE TABLE tally (
    queue TEXT NOT NULL, status INTEGER NOT NULL, records INTEGER NOT NULL, PRIMARY KEY (queue, status)
) WITHOUT ROWID;
CREATE TABLE logs (job TEXT NOT NULL, claims INTEGER NOT NULL, lines TEXT NOT NULL);
CREATE UNIQUE INDEX logs_runs ON logs (job, claims);
CREATE TABLE counted (one INTEGER PRIMARY KEY, number INTEGER NOT NULL, job TEXT NOT NULL);
CREATE TABLE history (
    step TEXT NOT NULL, at INTEGER NOT NULL, figures TEXT NOT NULL, PRIMARY KEY (step, at)
) WITHOUT ROWID;
CREATE TABLE turns (number INTEGER PRIMARY KEY, at INTEGER NOT NULL, counts TEXT, figures TEXT);
CREATE TABLE events (
    number INTEGER PRIMARY KEY,
    job TEXT,
    claims INTEGER,
    name TEXT NOT NULL,
    at INTEGER NOT NULL,
    status INTEGER,
    about TEXT
);
CREATE TABLE plans (
    name TEXT PRIMARY KEY NOT NULL,
    version INTEGER NOT NULL,
    next_run_at INTEGER,
    awaits TEXT,
    about TEXT NOT NULL,
    template TEXT NOT NULL
);
CREATE INDEX plans_next ON plans (next_run_at) WHERE next_run_at IS NOT NULL;
CREATE TABLE controls (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    since INTEGER NOT NULL,
    who TEXT NOT NULL,
    reason TEXT NOT NULL,
    number INTEGER,
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;
CREATE TABLE audit (
    number INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    who TEXT NOT NULL,
    action TEXT NOT NULL,
    target TEXT NOT NULL,
    source TEXT NOT NULL,
    about TEXT NOT NULL
);
CREATE TABLE leases (
    name TEXT PRIMARY KEY NOT NULL,
    seat TEXT NOT NULL,
    incarnation TEXT NOT NULL,
    since INTEGER NOT NULL,
    until INTEGER NOT NULL,
    about TEXT NOT NULL
);
"""
