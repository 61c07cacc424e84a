"""``taskqueue stats``: how many jobs there are, by queue and status."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from taskqueue.cli import output, watch
from taskqueue.cli.context import StoreContext, pass_store
from taskqueue.model.job_filter import WORDS_OF_PARTS
from taskqueue.model.record import Status
from taskqueue.model.wording import decided, local, span
from taskqueue.scheduler import json_shapes

if TYPE_CHECKING:
    from taskqueue.insight.overview import Upcoming
    from taskqueue.insight.overview_reader import OverviewReader
    from taskqueue.insight.work_report import Day


@click.command("stats", short_help="Count the jobs of each queue by status.")
@watch.watch_option
@output.json_option("one JSON object")
@click.option("--day", "has_day", is_flag=True, help="Also the last hour against yesterday, and the next 24 hours.")
@pass_store
def stats_command(context: StoreContext, every: float | None, as_json: bool, has_day: bool) -> None:
    """Count the jobs of each queue by status, and say what is paused, drained or has a changed limit.

    oldest is how long the next job to be claimed from a queue has waited. With --day, the figures are those of the
    overview of the dashboard.
    """
    reader = context.scheduler.overview_reader() if has_day else None  # with --watch, it keeps what cannot change
    if every is not None:
        watch.repeat(lambda: _show(context, reader), every, as_json=as_json)
    elif as_json:
        controls = [json_shapes.control(control) for control in context.scheduler.controls()]
        stats = context.scheduler.stats()
        stats["waiting_since"] = {queue: json_shapes.time(since) for queue, since in stats["waiting_since"].items()}
        day = json_shapes.day(*_day(reader)) if reader is not None else {}
        output.write({"store": context.store.url, **stats, "controls": controls, **day})
    else:
        _show(context, reader)


def _show(context: StoreContext, reader: OverviewReader | None) -> None:
    _table(context)
    if reader is not None:
        day, upcoming = _day(reader)
        for figure in day.figures:
            output.line(f"{figure.name}: {figure.value} (yesterday {figure.yesterday})")
        parts = (f"{number} {WORDS_OF_PARTS[word]}" for word, number in upcoming.numbers.items() if number)
        output.line(f"due in 24 hours: {upcoming.due}; {', '.join(parts)}")
        for schedule in upcoming.schedules:
            if schedule.next_run_at is not None:
                output.line(f"schedule {schedule.name}: next {local(schedule.next_run_at)}")
    controls = context.scheduler.controls()
    if controls:
        from taskqueue.cli import terminal

        now = context.store.now()
        terminal.sentences("\n".join(decided(control, now) for control in controls))


def _day(reader: OverviewReader) -> tuple[Day, Upcoming]:
    state = reader.read()
    return reader.day(state), reader.upcoming(state.at)


def _table(context: StoreContext) -> None:
    tally = context.store.tally()
    queues = sorted({queue for queue, _ in tally})
    if not queues:
        output.line("no jobs")
        return
    from taskqueue.cli import terminal

    columns = [terminal.Column(head="queue", cut="end")]
    columns += [terminal.Column(head=status.name.lower(), side="right") for status in Status]
    columns.append(terminal.Column(head="oldest", side="right"))
    now, since = context.store.now(), context.store.waiting_since()
    ages = {queue: span(max(0.0, (now - first).total_seconds())) for queue, first in since.items()}
    rows = [
        [queue, *(_figure(tally.get((queue, status), 0)) for status in Status), ages.get(queue, "-")]
        for queue in queues
    ]
    if len(queues) > 1:
        totals = (sum(tally.get((queue, status), 0) for queue in queues) for status in Status)
        oldest = ages[min(since, key=lambda queue: since[queue])] if since else "-"
        rows.append(["all", *map(_figure, totals), oldest])
    terminal.table(columns, rows)


def _figure(count: int) -> str:
    return f"{count:,}" if count else "-"
