"""``taskqueue audit``: print who did what to jobs, queues, nodes and schedules."""

from __future__ import annotations

import click

from taskqueue.cli import ids, output
from taskqueue.cli.context import StoreContext, pass_store
from taskqueue.model.audit import AuditEntry
from taskqueue.model.wording import local
from taskqueue.scheduler import json_shapes


@click.command("audit", short_help="Print who did what, and from where.")
@click.option("-n", "--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="At most N entries.")
@click.option("--before", metavar="CURSOR", help="Only entries before this cursor; --json prints the cursor of each.")
@output.json_option("a JSON list")
@pass_store
def audit_command(context: StoreContext, limit: int, before: str | None, as_json: bool) -> None:
    """Print who did what to jobs, queues, nodes and schedules, when, and from where, the newest first.

    Actions of the dashboard, its API, `top` and other commands are kept for 400 days. Jobs that `add` adds are not
    listed: their meta names the user who added them.
    """
    entries = context.store.audit(limit, before)
    if as_json:
        output.write_all(map(json_shapes.audit_entry, entries))
        return
    if not entries:
        output.line("no actions yet" if before is None else "no older entries")
        return
    from taskqueue.cli import terminal

    columns = (
        terminal.Column(head="when"),
        terminal.Column(head="who", cut="end"),
        terminal.Column(head="did"),
        terminal.Column(head="to", cut="end"),
        terminal.Column(head="about", cut="end", is_spare=True),
        terminal.Column(head="from", cut="end", is_spare=True),
    )
    terminal.table(columns, [_row(entry) for entry in entries])


def _row(entry: AuditEntry) -> list[str]:
    target = ids.short(entry.target) if entry.concerns_job else entry.target or "all"
    return [local(entry.at), entry.by, entry.action, target, entry.details, entry.source]
