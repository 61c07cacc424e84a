"""``taskqueue analytics``: figures of the jobs that ended in a period, in groups."""

from __future__ import annotations

from typing import Any

import click

from taskqueue.cli import output
from taskqueue.cli.context import StoreContext, pass_store
from taskqueue.cli.param_types import past
from taskqueue.model.analytics import Analytics, Group, Grouping, Spread
from taskqueue.model.wording import local, span
from taskqueue.scheduler import json_shapes


@click.command("analytics", short_help="Count ends, waiting times and run times of jobs.")
@click.option(
    "--by",
    type=click.Choice([grouping.value for grouping in Grouping]),
    default=Grouping.QUEUE.value,
    show_default=True,
    help="Group jobs by this; a job with several tags counts for each tag.",
)
@click.option(
    "--since",
    type=past,
    default="1h",
    show_default=True,
    metavar="VALUE",
    help="Jobs that ended after this: a time, or how long ago (before --until).",
)
@click.option("--until", metavar="VALUE", help="Jobs that ended by this; default: now.")
@click.option(
    "--at-most",
    type=click.IntRange(1, 10_000_000),
    default=100_000,
    show_default=True,
    metavar="N",
    help="With --by tag: count only the newest N jobs, which shortens the period.",
)
@output.json_option("one JSON object")
@pass_store
def analytics_command(
    context: StoreContext, by: str, since: str, until: str | None, at_most: int, as_json: bool
) -> None:
    """Count how jobs ended, how long they waited and ran, and by which errors they failed.

    Times are those of the last attempt: waiting from when it could start, running from when it did. p95 is the time
    that 95 of 100 jobs did not exceed. Figures are kept for 90 days, figures by minute for 3; figures by tag cover
    only jobs that are still kept.
    """
    value = context.scheduler.analytics(by, since, until, at_most=at_most)
    if as_json:
        output.write({"store": context.store.url, **json_shapes.analytics(value)})
        return
    _show(value, at_most)


def _show(value: Analytics, at_most: int) -> None:
    from taskqueue.cli import terminal

    groups = [*value.groups, *([value.whole] if len(value.groups) != 1 else [])]
    if not value.whole.ended:
        output.line("no jobs ended in this period")
    else:
        terminal.table(_columns(terminal, value.by), [_row(group) for group in groups])
    if value.is_cut:
        output.line(f"more than {at_most:,} jobs ended in this period: these are the newest; see --at-most")
    output.line(f"ended {local(value.since)} to {local(value.until)}")
    now = value.present
    waiting = f"{now.queued:,} queued, {now.postponed:,} postponed, {now.blocked:,} blocked by others"
    lost = f" ({now.lost:,} lost by their nodes)" if now.lost else ""
    output.line(f"now {waiting}, {now.running:,} running{lost}")


def _columns(terminal: Any, by: Grouping) -> list[Any]:
    figures = ["done", "failed", "timeout", "canceled", "retried", "done/min"]
    times = ["waited p50", "waited p95", "ran p50", "ran p95"]
    return [
        terminal.Column(head=by.value, cut="start" if by is Grouping.CLASS else "end"),
        *(terminal.Column(head=head, side="right", is_spare=head in ("canceled", "timeout")) for head in figures),
        *(terminal.Column(head=head, side="right", is_spare=head.endswith("p50")) for head in times),
        terminal.Column(head="errors", cut="end", least=12),
    ]


def _row(group: Group) -> list[str]:
    counts = (group.done, group.failed, group.timeout, group.canceled, group.retried)
    errors = ", ".join(f"{name.rpartition('.')[2]} {number:,}" for name, number in group.errors.items())
    return [
        group.name,
        *(f"{count:,}" if count else "-" for count in counts),
        f"{group.done_per_minute:,.{1 if group.done_per_minute >= 10 else 2}f}",
        *_percentiles(group.waiting),
        *_percentiles(group.running),
        errors,
    ]


def _percentiles(spread: Spread | None) -> tuple[str, str]:
    return ("-", "-") if spread is None else (span(spread.p50), span(spread.p95))
