"""``taskqueue workflows``: the workflows, how far each is, and whether it failed."""

from __future__ import annotations

import click

from taskqueue.cli import output
from taskqueue.cli.context import StoreContext, pass_store
from taskqueue.model.wording import local, span
from taskqueue.scheduler import json_shapes, workflows


@click.command("workflows", short_help="List workflows, the newest first, and how far each is.")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1, workflows.MOST_RECENT),
    default=20,
    show_default=True,
    metavar="N",
    help="Maximum number of workflows.",
)
@click.option("--after", metavar="ID", help="Start after this workflow, the last one of the previous page.")
@output.json_option("a JSON list")
@pass_store
def workflows_command(context: StoreContext, limit: int, after: str | None, as_json: bool) -> None:
    """List the workflows that have members in the store, the newest first.

    `show ID` draws one, `recover --workflow ID` runs its failed part again, `list workflow:ID` lists its jobs.
    """
    listed = workflows.recent(context.scheduler, limit, after=after)
    if as_json:
        output.write_all(map(json_shapes.workflow, listed))
        return
    if not listed:
        output.line("no workflows: `workflows.chain`, `group` and `map` add them")
        return
    from taskqueue.cli import terminal

    now = context.store.now()
    columns = [
        terminal.Column(head="id"),
        terminal.Column(head="name", cut="end"),
        terminal.Column(head="state", styles={"failed": "bold red", "running": "yellow", "done": "green"}),
        terminal.Column(head="ended", side="right"),
        terminal.Column(head="failed", side="right"),
        terminal.Column(head="took", side="right"),
        terminal.Column(head="started", is_spare=True),
    ]
    rows = []
    for summary in listed:
        took = summary.took(now)
        rows.append(
            [
                str(summary.id),
                summary.name,
                summary.state,
                f"{summary.ended:,}/{summary.number:,}",
                f"{summary.failed:,}" if summary.failed else "-",
                "-" if took is None else span(took),
                local(summary.started_at) if summary.started_at else "-",
            ]
        )
    terminal.table(columns, rows)
    if len(listed) == limit:
        terminal.dim(f"older ones: --after {listed[-1].id}")
