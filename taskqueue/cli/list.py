"""``taskqueue list``: the jobs that match, the newest first; if only ended jobs are asked for, the last ended first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

import click

from taskqueue.cli import completion, ids, output, record_facts, watch
from taskqueue.cli.context import StoreContext, pass_store
from taskqueue.cli.param_types import duration, extended_json, past
from taskqueue.errors import InvalidQuery
from taskqueue.model import query as language
from taskqueue.model.controls import Controls
from taskqueue.model.record import Cause, Record, Status
from taskqueue.model.wording import nearest
from taskqueue.scheduler import json_shapes
from taskqueue.store import Store
from taskqueue.store.query_bounds import statuses_of

PAGE = 500
GROUPS: Mapping[str, Iterable[Status]] = {
    **{status.name.lower(): [status] for status in Status},
    "pending": [status for status in Status if status.is_pending],
    "final": [status for status in Status if status.is_final],
}


@click.command("list")
@click.option(
    "--status", multiple=True, type=click.Choice(tuple(GROUPS), case_sensitive=False), metavar="STATUS",
    help=f"Only jobs in this status; may be repeated: {', '.join(GROUPS)}.",
)  # fmt: skip
@click.option(
    "--queue",
    multiple=True,
    shell_complete=completion.queues,
    metavar="QUEUE",
    help="Only jobs of this queue; may be repeated.",
)
@click.option("--tag", multiple=True, metavar="TAG", help="Only jobs with this tag; repeated: with all of them.")
@click.option(
    "--job",
    multiple=True,
    shell_complete=completion.classes,
    metavar="PATH",
    help="Only jobs of this class, as module:Class; may be repeated.",
)
@click.option("--slow", type=duration, metavar="S", help="Only jobs whose last attempt took longer than this: 5s, 2m.")
@click.option(
    "--late", type=duration, metavar="S", help="Only jobs that could run and have waited for longer than this."
)
@click.option("--attempts-over", type=click.IntRange(min=0), metavar="N", help="Only jobs that took more attempts.")
@click.option("--since", type=past, metavar="VALUE", help="Only jobs that ended after this: a time, or how long ago.")
@click.option("--query", type=extended_json, metavar="JSON", help='Only jobs that match: \'{"data.to": "a@b.org"}\'.')
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    metavar="N",
    help="The most jobs; 0 means all.",
)
@watch.watch_option
@click.option("--json", "as_json", is_flag=True, help="Write a JSON list for programs.")
@pass_store
def list_command(context: StoreContext, limit: int, every: float | None, as_json: bool, **filters: Any) -> None:
    """List jobs, the newest first.

    If only ended jobs are asked for, the last ended come first.
    """
    store = context.store
    if every is not None:
        watch.repeat(lambda: _list(store, _query(store.now, **filters), limit), every, as_json=as_json)
    elif as_json:
        output.write_all(json_shapes.job(record) for record in _pages(store, _query(store.now, **filters), limit))
    else:
        _list(store, _query(store.now, **filters), limit)
        _say_unknown(store, filters["queue"], filters["job"])


def _list(store: Store, query: language.Query, limit: int) -> None:
    shown = list(_pages(store, query, limit))
    _show(shown, store.now(), record_facts.controls_for(store, shown), _foot(len(shown), store, query))


def _say_unknown(store: Store, queue: tuple[str, ...], job: tuple[str, ...]) -> None:
    """Say which of these names no job has: it may be misspelt."""
    queues = {name for name, _ in store.tally()} if queue else set()
    for name in queue:
        if name not in queues:
            output.line(f"no job has queue {name}{nearest(name, queues)}", err=True)
    for name in job:
        if not store.find(language.parse({"job": name}), limit=1):
            output.line(f"no job has class {name}{nearest(name, completion.recent_classes(store))}", err=True)


def _query(
    clock: Callable[[], datetime],
    status: tuple[str, ...],
    queue: tuple[str, ...],
    tag: tuple[str, ...],
    job: tuple[str, ...],
    query: Any,
    **figures: Any,
) -> language.Query:
    asked: list[dict[str, Any]] = [{"tags": each} for each in tag]
    if status:
        asked.append({"status": {"$in": [int(each) for name in status for each in GROUPS[name]]}})
    if queue:
        asked.append({"queue": {"$in": list(queue)}})
    if job:
        asked.append({"job": {"$in": list(job)}})
    if any(value is not None for value in figures.values()):
        asked += _by_figures(clock(), **figures)
    parts = [language.parse(each) for each in asked]
    if query is not None:
        if not isinstance(query, dict):
            raise InvalidQuery(f'--query takes a JSON object such as {{"queue": "mail"}}, not {query!r}')
        parts.append(language.parse(query))
    return language.And(tuple(parts))


def _by_figures(
    now: datetime, slow: float | None, late: float | None, attempts_over: int | None, since: str | None
) -> Iterator[dict[str, Any]]:
    """Yield slow jobs, late jobs, and jobs that took many attempts."""
    if slow is not None:
        yield {"status": {"$in": [Status.DONE, Status.FAILED, Status.TIMEOUT]}, "took": {"$gt": slow}}
    if late is not None:
        due = {"ready_at": {"$lt": now - timedelta(seconds=late)}, "cause": {"$ne": Cause.BEHIND}}
        yield {"status": {"$lt": Status.PROCESSING}, **due}
    if attempts_over is not None:
        yield {"tries": {"$gt": attempts_over}}
    if since is not None:
        from taskqueue.model.schedules import ago

        yield {"status": {"$gt": Status.PROCESSING}, "ended_at": {"$gt": ago(since, now)}}


def _pages(store: Store, query: language.Query, limit: int) -> Iterator[Record]:
    """Yield up to ``limit`` records (0: all), in batches that keep memory small."""
    after = None
    rest = limit
    statuses = statuses_of(query)
    field = "ended_at" if statuses and min(statuses) > Status.PROCESSING else "created_at"  # each by an index
    while True:
        size = min(PAGE, rest) if limit else PAGE
        page = store.find(query, order=f"-{field}", limit=size, after=after)
        yield from page
        rest -= len(page)
        if len(page) < size or (limit and rest <= 0):
            return
        after = (getattr(page[-1], field), page[-1].id)


def _foot(shown: int, store: Store, query: language.Query) -> str:
    if not shown:
        return ""
    count = store.count(query)
    return f"{shown} of {count:,} jobs; --limit shows more" if count > shown else ""


def _show(records: list[Record], now: datetime, controls: Controls, foot: str) -> None:
    if not records:
        output.line("no jobs")
        return
    from taskqueue.cli import terminal

    columns = (
        terminal.Column(head="id"),
        terminal.Column(head="job", cut="start"),
        terminal.Column(head="status", styles=terminal.STATUS_STYLES),
        terminal.Column(head="queue", cut="end", is_spare=True),
        terminal.Column(head="age", side="right", is_spare=True),
        terminal.Column(head="done", side="right"),
        terminal.Column(head="tries", side="right", is_spare=True),
        terminal.Column(head="cause", cut="end"),
    )
    terminal.table(columns, [_row(record, now, controls) for record in records], foot)


def _row(record: Record, now: datetime, controls: Controls) -> list[str]:
    return [
        ids.named(record),
        record.job,
        record.status.name,
        record.queue,
        record_facts.age(record, now),
        record_facts.progress(record),
        record_facts.attempts(record),
        record_facts.cause(record, now, controls),
    ]
