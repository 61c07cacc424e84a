"""``taskqueue stats``: how many jobs there are, by queue and status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import click

from taskqueue.cli import documents
from taskqueue.cli.place import Place, pass_place
from taskqueue.model.record import Status


@click.command("stats")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object for programs.")
@pass_place
def stats_command(place: Place, as_json: bool) -> None:
    """Count the jobs of each queue by status."""
    tally = place.store.tally()
    total = _total(tally)
    queues = sorted({queue for queue, _ in tally})
    if as_json:
        rows = {queue: _by_name({status: tally.get((queue, status), 0) for status in Status}) for queue in queues}
        documents.write({"store": place.store.url, "total": _by_name(total), "queues": rows})
        return
    if not queues:
        click.echo("no jobs")
        return
    from taskqueue.cli import terminal

    columns = [terminal.Column(head="queue", cut="end")]
    columns += [terminal.Column(head=status.name.lower(), side="right") for status in Status]
    rows_shown = [[queue, *(_figure(tally.get((queue, status), 0)) for status in Status)] for queue in queues]
    if len(queues) > 1:
        rows_shown.append(["all", *(_figure(total[status]) for status in Status)])
    terminal.table(columns, rows_shown)


def _total(tally: Mapping[tuple[str, Status], int]) -> Mapping[Status, int]:
    counted: Counter[Status] = Counter()
    for (_, status), count in tally.items():
        counted[status] += count
    return counted


def _by_name(counts: Mapping[Status, int]) -> dict[str, int]:
    return {status.name.lower(): counts.get(status, 0) for status in Status}


def _figure(count: int) -> str:
    return f"{count:,}" if count else "-"
