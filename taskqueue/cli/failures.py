"""``taskqueue failures`` and ``releases``: what failed in the last hour, and what is new since a marked release."""

from __future__ import annotations

from typing import Any

import click

from taskqueue.cli import output
from taskqueue.cli.context import StoreContext, pass_store
from taskqueue.insight.failure_groups import FailureGroup
from taskqueue.insight.failure_states import FailureDecision, FailureState
from taskqueue.insight.overview_reader import Overview, OverviewReader
from taskqueue.model.wording import count, minute, percent
from taskqueue.scheduler import json_shapes

MOST_RELEASES = 20
"""How many of the last releases are listed."""


@click.command("failures", short_help="List what fails, and whether it is new.")
@click.option("--all", "shows_all", is_flag=True, help="Also list errors that are muted or resolved.")
@output.json_option("one JSON object", ", with all errors")
@pass_store
def failures_command(context: StoreContext, shows_all: bool, as_json: bool) -> None:
    """List the failed attempts of the last hour by class and error, against the last week.

    Attempts that are retried count, too. The ID is for `taskqueue mute`, `resolve` and `reopen`.
    """
    overview = OverviewReader(context.store).read()
    others = _others(overview)
    if as_json:
        output.write(
            {
                "store": context.store.url,
                "failures": [json_shapes.judged(group) for group in overview.groups],
                "decisions": [json_shapes.decision(decision) for decision in others],
            }
        )
        return
    shown = [group for group in overview.groups if shows_all or not group.state.is_silent]
    _print(shown, overview)
    hidden = len(overview.groups) - len(shown)
    if shows_all:
        for decision in others:
            output.line(f"{decision.id}  {decision.says(overview.at)}; none failed in the last hour")
            output.line(f"            {decision.job}: {decision.fingerprint or 'no error'}")
    elif hidden:
        output.line(f"{count(hidden, 'more error')}, muted or resolved: `taskqueue failures --all`")


def _others(overview: Overview) -> list[FailureDecision]:
    """Return the decisions about errors that failed no attempt in the last hour."""
    present = {group.id for group in overview.groups}
    return [decision for decision in overview.decisions if decision.id not in present]


def _print(groups: list[FailureGroup], overview: Overview) -> None:
    from taskqueue.cli import terminal

    if not groups:
        output.line("no attempt failed in the last hour" if not overview.groups else "nothing else failed")
        return
    columns = [
        terminal.Column(head="id", cut="never"),
        terminal.Column(head="state", cut="never"),
        terminal.Column(head="failed", side="right"),
        terminal.Column(head="share", side="right"),
        terminal.Column(head="last", cut="never"),
        terminal.Column(head="class", cut="start"),
        terminal.Column(head="error", cut="end"),
    ]
    terminal.table(columns, [_row(group, overview) for group in groups])
    for group in groups:
        if group.release is not None:
            at = minute(group.release.at, overview.at)
            output.line(f"{group.id}  new since release {group.release.name}, marked {at}")
        if group.decision is not None and group.state is not FailureState.OPEN:
            output.line(f"{group.id}  {group.decision.says(overview.at)}")


def _row(group: FailureGroup, overview: Overview) -> list[Any]:
    error = group.fingerprint or "no error"
    return [
        group.id,
        group.word,
        f"{group.number:,}",
        percent(group.share),
        minute(group.last_at, overview.at),
        group.job,
        error,
    ]


@click.command("releases", short_help="List marked releases, and the errors that are new since each.")
@output.json_option("one JSON object", ", with all releases")
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
    for release in state.releases[: -MOST_RELEASES - 1 : -1]:
        new = sum(group.release == release for group in state.groups)
        rows.append([release.name, minute(release.at, state.at), f"{new:,}" if new else "-", release.by])
    terminal.table(columns, rows)
    left_out = len(state.releases) - len(rows)
    if left_out:
        output.line(f"{left_out:,} older ones: `taskqueue releases --json`")
