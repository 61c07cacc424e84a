"""``taskqueue releases``: the marked releases, and the errors that are new since each."""

from __future__ import annotations

import click

from taskqueue.cli import output
from taskqueue.cli.context import StoreContext, pass_store
from taskqueue.insight.overview_reader import OverviewReader
from taskqueue.model.wording import minute
from taskqueue.scheduler import json_shapes

MOST = 20
"""How many of the last releases are listed."""


@click.command("releases", short_help="List marked releases, and the errors that are new since each.")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object for programs, with all releases.")
@pass_store
def releases_command(context: StoreContext, as_json: bool) -> None:
    """List the last releases that `taskqueue release` marked, the newest first.

    For each, it says how many errors of the last hour were first seen after it; `taskqueue failures` lists them.
    """
    state = OverviewReader(context.store).read()
    if as_json:
        releases = [json_shapes.release(release) for release in state.releases]
        output.write({"store": context.store.url, "releases": releases})
        return
    if not state.releases:
        output.line("no release is marked: `taskqueue release v42` marks one at the end of a deployment")
        return
    from taskqueue.cli import terminal

    columns = [
        terminal.Column(head="release", cut="end"),
        terminal.Column(head="marked", cut="never"),
        terminal.Column(head="new errors", side="right"),
        terminal.Column(head="by", cut="end"),
    ]
    rows = []
    for release in state.releases[: -MOST - 1 : -1]:
        new = sum(group.release == release for group in state.groups)
        rows.append([release.name, minute(release.at, state.at), f"{new:,}" if new else "-", release.by])
    terminal.table(columns, rows)
    left_out = len(state.releases) - len(rows)
    if left_out:
        output.line(f"{left_out:,} older ones: `taskqueue releases --json`")
