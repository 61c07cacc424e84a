"""``taskqueue list``: the jobs that match, the newest first; if only ended jobs are asked for, the last ended first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import click

from taskqueue.cli import completion, ids, output, record_facts, watch
from taskqueue.cli.context import StoreContext, pass_store
from taskqueue.cli.param_types import duration, job_filter, past
from taskqueue.insight import obstacles, records
from taskqueue.insight.records import PAGE, ends_of
from taskqueue.model import query as language
from taskqueue.model.job_filter import STATUSES, TEXT, JobFilter, Token
from taskqueue.model.meta import checked_meta
from taskqueue.model.record import Record, Status
from taskqueue.model.wording import local, span
from taskqueue.scheduler import json_shapes
from taskqueue.store import Store
from taskqueue.store.query_bounds import statuses_of

WIDE = 100_000
"""Columns of a terminal on which nothing is cut."""


@click.command("list")
@click.argument("filter", metavar="[FILTER…]", nargs=-1, shell_complete=completion.tokens)
@click.option(
    "--status", multiple=True, type=click.Choice(tuple(STATUSES), case_sensitive=False), metavar="STATUS",
    help=f"Only jobs in this status; may be repeated: {', '.join(STATUSES)}.",
)  # fmt: skip
@click.option("--failed", is_flag=True, help="Only jobs that FAILED.")
@click.option(
    "--queue",
    multiple=True,
    shell_complete=completion.queues,
    metavar="QUEUE",
    help="Only jobs of this queue; may be repeated.",
)
@click.option(
    "--tag", "--tags", "tag", multiple=True, metavar="TAG", help="Only jobs with this tag; repeated: with all of them."
)
@click.option("--meta", multiple=True, metavar="KEY=VALUE", help="Only jobs with this in their meta; may be repeated.")
@click.option(
    "--class", "--job", "class",
    multiple=True,
    shell_complete=completion.classes,
    metavar="NAME",
    help="Only jobs of this class: module:Class, or a part of it; may be repeated.",
)  # fmt: skip
@click.option("--slow", type=duration, metavar="S", help="Only jobs whose last attempt took longer than this: 5s, 2m.")
@click.option(
    "--late", type=duration, metavar="S", help="Only jobs that could run and have waited for longer than this."
)
@click.option("--attempts-over", type=click.IntRange(min=0), metavar="N", help="Only jobs with more attempts.")
@click.option("--since", type=past, metavar="VALUE", help="Only jobs that ended after this: a time, or how long ago.")
@click.option(
    "--query", type=job_filter, metavar="FILTER", help='Only jobs that match, as text or JSON: {"data.to": "a@b.org"}.'
)
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    metavar="N",
    help="At most N jobs; 0 means all.",
)
@click.option(
    "-o", "--output", "form",
    type=click.Choice(("wide", "json")),
    help="wide: also node, times, tags, meta and error, with nothing cut. json: the same as --json.",
)  # fmt: skip
@watch.watch_option
@output.json_option("a JSON list")
@pass_store
def list_command(
    context: StoreContext,
    filter: tuple[str, ...],
    query: JobFilter | None,
    limit: int,
    form: str | None,
    every: float | None,
    as_json: bool,
    failed: bool,
    **options: Any,
) -> None:
    """List jobs, the newest first.

    FILTER names what they have in common: class:Mail customer:initech error:vat status:failed. KEY:VALUE with a key of
    your own is a tag or a value of the meta. If only ended jobs are asked for, the last ended come first.
    """
    store = context.store
    tokens = [*JobFilter.of_arguments(filter).tokens, *_of_options(options), *(query.tokens if query else ())]
    tokens += [Token("status", "failed")] if failed else []
    meant = JobFilter(tuple(_with_full_id(store, token) for token in tokens))
    as_json, is_wide = as_json or form == "json", form == "wide"
    if every is not None:
        watch.repeat(lambda: _list(store, _query(store, meant), limit, is_wide), every, as_json=as_json)
    elif as_json:
        output.write_all(json_shapes.job(record) for record in _pages(store, _query(store, meant), limit))
    else:
        _list(store, _query(store, meant), limit, is_wide)
        _say_unknown(store, meant)


def _of_options(options: Mapping[str, Any]) -> Iterator[Token]:
    """Yield the tokens that the options mean."""
    for name, values in options.items():
        for value in values if isinstance(values, tuple) else () if values is None else (values,):
            if name == "meta":
                yield from (Token(f"meta.{key}", text) for key, text in checked_meta(value).items())
            else:
                yield Token(name.replace("_", "-"), str(value))


def _with_full_id(store: Store, token: Token) -> Token:
    """Return the token with the whole id if it is a shortened one, as lists show it."""
    if token.key in ("id", TEXT) and ends_of(token.value) is not None:
        return Token("id", str(ids.resolve(store, token.value).id))
    return token


def _list(store: Store, query: language.Query, limit: int, is_wide: bool) -> None:
    shown = list(_pages(store, query, limit))
    if not shown:
        output.line("no jobs")
        return
    now, controls = store.now(), obstacles.holds(store, shown)
    rows = [record_facts.cells(record, now, controls) + (_details(record) if is_wide else []) for record in shown]
    _show(rows, _foot(len(shown), store, query), is_wide)


def _say_unknown(store: Store, meant: JobFilter) -> None:
    """Report names that no job has: they may be misspelt."""
    for token, sentence in completion.names_of(store).unknown(meant) if meant else ():
        if not store.find(_query(store, JobFilter((token,))), limit=1):
            output.line(sentence, err=True)


def _query(store: Store, meant: JobFilter) -> language.Query:
    return language.parse(meant.query(store.now()))


def _pages(store: Store, query: language.Query, limit: int) -> Iterator[Record]:
    """Yield up to ``limit`` records (0: all), in batches that keep memory small."""
    statuses = statuses_of(query)
    order = "-ended_at" if statuses and min(statuses) > Status.PROCESSING else "-created_at"  # each one by an index
    yield from islice(records.matching(store, query, min(limit or PAGE, PAGE), order), limit or None)


def _foot(shown: int, store: Store, query: language.Query) -> str:
    count = store.count(query)
    return f"{shown} of {count:,} jobs; --limit shows more" if count > shown else ""


def _show(rows: list[list[str]], foot: str, is_wide: bool) -> None:
    from taskqueue.cli import terminal

    columns = [
        terminal.Column(head="id"),
        terminal.Column(head="job", cut="start"),
        terminal.Column(head="status", styles=terminal.STATUS_STYLES),
        terminal.Column(head="queue", cut="end", is_spare=True),
        terminal.Column(head="age", side="right", is_spare=True),
        terminal.Column(head="done", side="right"),
        terminal.Column(head="tries", side="right", is_spare=True),
        terminal.Column(head="cause", cut="end"),
    ]
    if is_wide:
        columns += [terminal.Column(head=head) for head in ("node", "began", "took", "tags", "meta", "error")]
    terminal.table(columns, rows, foot, WIDE if is_wide else None)


def _details(record: Record) -> list[str]:
    """Return the cells that only a wide list has; node and times are from the last run."""
    last = record.attempts[-1] if record.attempts else None
    began = record.started_at or (last.started_at if last else None)
    return [
        record.holder.seat if record.holder else last.node if last else "-",
        local(began) if began else "-",
        "-" if record.took is None else span(record.took),
        ",".join(record.tags) or "-",
        ",".join(f"{key}={value}" for key, value in record.meta.items()) or "-",
        f"{record.error.type}: {record.error.message}" if record.error else "-",
    ]
