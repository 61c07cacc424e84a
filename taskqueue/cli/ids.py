"""Ids as people write them: in full, as a prefix, as ``list`` shows them (prefix, two dots, suffix), or as text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

import click

from taskqueue.errors import JobNotFound
from taskqueue.insight.records import ID_LENGTH, ends_of, with_ends, with_id_text
from taskqueue.model.ids import JobId
from taskqueue.model.job_filter import KEYS
from taskqueue.model.query import parse
from taskqueue.model.record import Record
from taskqueue.store import Store

HEAD, TAIL = 8, 6
_PREFIX = re.compile(r"[0-9a-f]{1,24}")
_CANDIDATES_NAMED = 5
"""Maximum number of ids that an error names."""


class Ambiguous(JobNotFound):
    """A shortened id matches several jobs."""

    def __init__(self, written: str, candidates: Sequence[JobId]) -> None:
        super().__init__(written)
        named = ", ".join(str(id) for id in candidates[:_CANDIDATES_NAMED])
        more = ", …" if len(candidates) > _CANDIDATES_NAMED else ""
        self.args = (f"{written} matches several jobs: {named}{more}: write more of the id",)


class Unwritable(JobNotFound):
    """The text is not a valid id."""

    def __init__(self, written: str) -> None:
        super().__init__(written)
        way_out = "write its 24 digits 0-9a-f, or as `taskqueue list` shows it"
        key, colon, _ = written.partition(":")
        if colon and key in KEYS:
            token = shlex.quote(written)
            way_out = f"for jobs that match it use `taskqueue list {token}`; cancel and recover take --query {token}"
        self.args = (f"{written!r} is not a job id: {way_out}",)


def check_named(written: Sequence[str], query: object) -> None:
    """Raise ``click.UsageError`` unless a command got either ids or a query."""
    if not written and query is None:
        raise click.UsageError("name the jobs by ID or with --query")
    if written and query is not None:
        raise click.UsageError("name the jobs by ID or with --query, not both")


def short(id: JobId | str) -> str:
    """Return the id as lists show it: its second, two dots, its counter.

    A prefix alone is not enough: ids created by one process within a second differ only at the end.
    """
    text = str(id)
    return f"{text[:HEAD]}..{text[-TAIL:]}"


def named(record: Record) -> str:
    """Return the id of the job as lists show it: its text if it has one."""
    return record.id_text or short(record.id)


def resolve(store: Store, written: str) -> Record:
    """Return the record of the id. Raises ``JobNotFound`` if none or several match; it names the candidates."""
    if not JobId.is_valid(written):
        with_text = with_id_text(store, written)
        if with_text is not None:
            return with_text
    ends = ends_of(written)
    if ends is None and not _PREFIX.fullmatch(written.strip().lower()):
        raise Unwritable(written)

    def between(lowest: str, highest: str, limit: int) -> list[Record]:
        query = parse({"id": {"$gte": lowest, "$lte": highest}})
        return store.find(query, order="id", limit=limit)

    if ends is None:
        head = written.strip().lower()
        records = between(head.ljust(ID_LENGTH, "0"), head.ljust(ID_LENGTH, "f"), _CANDIDATES_NAMED + 1)
    else:
        records = with_ends(between, *ends, most=_CANDIDATES_NAMED)
    if not records:
        raise JobNotFound(written)
    if len(records) > 1:
        raise Ambiguous(written, [record.id for record in records])
    return records[0]
