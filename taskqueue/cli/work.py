"""``taskqueue class`` and ``taskqueue queue``: how one class, or one queue, is doing."""

from __future__ import annotations

from typing import Any

import click

from taskqueue.cli import completion, output
from taskqueue.cli.context import StoreContext, pass_store
from taskqueue.errors import InvalidOption
from taskqueue.insight import promises, work_report
from taskqueue.insight.limit_states import LimitState
from taskqueue.insight.work_report import Bucket, Named, Period, Scope, Share, WorkOf, WorkReport
from taskqueue.model.history import Durations
from taskqueue.model.secret_keys import SecretKeys
from taskqueue.model.shown_text import as_code
from taskqueue.model.wording import count, minute, nearest, percent, some, span
from taskqueue.scheduler import json_shapes

WIDE = 24
"""The characters of the longest bar of a histogram."""

_OVER = click.option(
    "--over",
    type=click.Choice([period.value for period in Period]),
    default=Period.DAY.value,
    show_default=True,
    help="The time of histograms, errors and slowest runs.",
)
_OF_JOB = (("id", "never"), ("class", "start"))


@click.command("class", short_help="Show how one class is doing.")
@click.argument("name", shell_complete=completion.classes)
@_OVER
@output.json_option("one JSON object")
@pass_store
def class_command(context: StoreContext, name: str, over: str, as_json: bool) -> None:
    """Show how one class is doing: figures of an hour, a day and a week, histograms, errors and slowest runs.

    NAME is the import path module:Class, or a part of it that only one class has. p95 is the time that 95 of 100 jobs
    did not exceed. Figures are from the history; tags and meta are those of the last jobs that ended.
    """
    _show(context, Scope.CLASS, name, Period(over), as_json=as_json)


@click.command("queue", short_help="Show how one queue is doing.")
@click.argument("name", shell_complete=completion.queues)
@_OVER
@output.json_option("one JSON object")
@pass_store
def queue_command(context: StoreContext, name: str, over: str, as_json: bool) -> None:
    """Show how one queue is doing: its backlog, and what `taskqueue class` shows of a class.

    NAME is its name, or a part of it that only one queue has.
    """
    _show(context, Scope.QUEUE, name, Period(over), as_json=as_json)


def _show(context: StoreContext, scope: Scope, name: str, period: Period, *, as_json: bool) -> None:
    reader = context.scheduler.overview_reader()
    names = reader.names(scope)
    report = reader.report(WorkOf(scope, _named(scope, name, names)), period, reader.read())
    limits = context.scheduler.limits(families) if (families := report.limit_families) else []
    if as_json:
        output.write({"store": context.store.url, **json_shapes.work_report(report, limits)})
    else:
        _print(report, limits)


def _named(scope: Scope, name: str, names: list[str]) -> str:
    """Return the class or queue that is meant; raise ``InvalidOption`` if none is known, or several are."""
    if name in names:
        return name
    matching = [candidate for candidate in names if name.lower() in candidate.lower()]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise InvalidOption(f"{as_code(name)} matches several names: {some(matching)}")
    seen, listed = ("had jobs within 7 days", "analytics --by class") if scope is Scope.CLASS else ("has jobs", "stats")
    raise InvalidOption(f"no {scope} {as_code(name)} {seen}{nearest(name, names) or f': see `taskqueue {listed}`'}")


def _print(report: WorkReport, limits: list[LimitState]) -> None:
    from taskqueue.cli import terminal

    last = {Period.HOUR: "last hour", Period.DAY: "last 24 hours", Period.WEEK: "last 7 days"}[report.period]
    seen = "last" if report.period is Period.HOUR else "last hour"  # the history of a day has no minutes
    output.line(f"{report.of.scope} {report.of.name}")
    terminal.sentences(work_report.lead(report))
    _facts(terminal, report)
    _table(
        terminal,
        "hour, day and week",
        [("last", "never"), *((head, "right") for head in ("hour", "24 hours", "7 days"))],
        [[name, *texts] for name, texts in work_report.figures_in_words(report)],
    )
    work = report.work[report.period]
    for name, durations in (("run time", work.running), ("waiting time", work.waiting)):
        _histogram(terminal, f"{name}, {last}", durations)
    _table(
        terminal,
        f"errors, {last}",
        [("failed", "right"), ("now", "never"), (seen, "never"), ("error", "end")],
        [
            [f"{error.number:,}", _trend(error), minute(error.last_at, report.at), error.fingerprint or "no error"]
            for error in report.errors
        ],
    )
    _table(
        terminal,
        f"tags and meta of the last {count(report.last.number, 'job')}",
        [("tag", "end"), ("jobs", "right"), ("failed", "right"), ("share", "right")],
        [_share(share) for share in report.last.shares if not _is_secret(share)],
    )
    _print_jobs(terminal, report)
    of_named = "queue" if report.of.scope is Scope.CLASS else "class"
    _table(
        terminal,
        f"by {of_named}, {last}",
        [(of_named, "start"), *((head, "right") for head in ("ended", "failed", "run p50", "run p95", "wait p95"))],
        [_of_named(named) for named in report.named],
    )
    _table(
        terminal,
        "limits",
        [("limit", "end"), ("used", "right"), ("waiting", "right")],
        [
            [str(limit.limit_key), f"{limit.used:,} of {limit.limit_key.count:,}", f"{limit.waiting:,}"]
            for limit in limits
        ],
    )


def _print_jobs(terminal: Any, report: WorkReport) -> None:
    """Print running jobs and slow runs."""
    _table(
        terminal,
        f"running: {count(report.running, 'job')}",
        [*_OF_JOB, ("runs for", "right"), ("left", "right")],
        [[str(run.record.id), run.record.job, _seconds(run.ran), _seconds(run.left)] for run in report.runs],
    )
    _table(
        terminal,
        "the slowest run of each slow " + ("minute" if report.period is Period.HOUR else "hour"),
        [*_OF_JOB, ("status", "never"), ("took", "right"), ("ended", "never")],
        [
            [str(record.id), record.job, record.status.name, _seconds(record.took), minute(record.ended_at, report.at)]
            for record in report.slowest
            if record.ended_at is not None
        ],
    )


def _facts(terminal: Any, report: WorkReport) -> None:
    facts: list[tuple[str, str]] = []
    if report.state is not None:
        state = report.state
        facts += [("waiting", f"{state.waiting:,}, the oldest for {_seconds(state.oldest)}")]
        facts += [("later", f"{state.postponed:,}"), ("running", f"{state.running:,}")]
    elif report.example is not None:
        facts += [("queue", report.example.queue), *work_report.options_in_words(report.example)]
    if report.promise is not None:
        facts.append(("kept", promises.in_words(report.promise, report.at)))
    if facts:
        terminal.facts(facts)


def _histogram(terminal: Any, title: str, durations: Durations) -> None:
    """Print a line for each bucket, with a bar to scale."""
    _table(
        terminal,
        title,
        [("up to", "right"), ("jobs", "right"), ("", "never"), ("", "never")],
        list(map(_bucket, work_report.histogram(durations))),
    )


def _bucket(bucket: Bucket) -> list[str]:
    bound = "longer" if bucket.bound == float("inf") else span(bucket.bound)
    bar = "#" * max(round(WIDE * bucket.height), int(bucket.jobs > 0))
    return [bound, f"{bucket.jobs:,}", bar, " ".join(f"p{percentile}" for percentile in bucket.percents)]


def _table(terminal: Any, title: str, columns: list[tuple[str, str]], rows: list[list[str]]) -> None:
    """Print a titled table; nothing if it has no rows. A column is aligned to the right, or is cut somewhere."""
    if not rows:
        return
    terminal.heading(title)
    shaped = [
        terminal.Column(head=head, side="right") if how == "right" else terminal.Column(head=head, cut=how)
        for head, how in columns
    ]
    terminal.table(shaped, rows)


def _trend(error: work_report.ErrorGroup) -> str:
    return "-" if error.judged is None else error.judged.word


def _share(share: Share) -> list[str]:
    name = share.name if share.value is None else f"{share.name}={share.value}"
    return [name, f"{share.jobs:,}", f"{share.failed:,}", percent(share.failed / share.jobs)]


def _is_secret(share: Share) -> bool:
    return share.value is not None and SecretKeys().is_secret(share.name)


def _of_named(named: Named) -> list[str]:
    name, work = named
    share = "-" if work.failed_share is None else percent(work.failed_share)
    times = [(work.running, 50), (work.running, 95), (work.waiting, 95)]
    return [
        name,
        f"{work.ended:,}",
        share,
        *(span(durations.percentile(percentile)) if durations.number else "-" for durations, percentile in times),
    ]


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else span(seconds)
