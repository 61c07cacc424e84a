"""``taskqueue stats``: how many jobs there are, by queue and status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import click

from taskqueue.cli import json_output, output
from taskqueue.cli.context import StoreContext, pass_store
from taskqueue.model.record import Status
from taskqueue.model.wording import decided


@click.command("stats", short_help="Count the jobs of each queue by status.")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object for programs.")
@pass_store
def stats_command(context: StoreContext, as_json: bool) -> None:
    """Count the jobs of each queue by status, and say what is paused, drained or limited otherwise."""
    if as_json:
        controls = [json_output.control(one) for one in context.scheduler.controls()]
        json_output.write({"store": context.store.url, **context.scheduler.stats(), "controls": controls})
        return
    _table(context)
    for control in context.scheduler.controls():
        output.line(decided(control, context.store.now()))


def _table(context: StoreContext) -> None:
    tally = context.store.tally()
    queues = sorted({queue for queue, _ in tally})
    if not queues:
        output.line("no jobs")
        return
    from taskqueue.cli import terminal

    columns = [terminal.Column(head="queue", cut="end")]
    columns += [terminal.Column(head=status.name.lower(), side="right") for status in Status]
    rows = [[queue, *(_figure(tally.get((queue, status), 0)) for status in Status)] for queue in queues]
    if len(queues) > 1:
        total = _total(tally)
        rows.append(["all", *(_figure(total[status]) for status in Status)])
    terminal.table(columns, rows)


def _total(tally: Mapping[tuple[str, Status], int]) -> Mapping[Status, int]:
    counted: Counter[Status] = Counter()
    for (_, status), count in tally.items():
        counted[status] += count
    return counted


def _figure(count: int) -> str:
    return f"{count:,}" if count else "-"
