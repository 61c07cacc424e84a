"""Ids as people write them: in full, as a prefix, as ``list`` shows them (prefix, two dots, suffix), or as text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from taskqueue.errors import JobNotFound
from taskqueue.insight.records import with_id_text
from taskqueue.model.ids import JobId
from taskqueue.model.query import And, Compare, Operator, Query
from taskqueue.model.record import Record
from taskqueue.store import Store

HEAD, TAIL, LENGTH = 8, 6, 24
_WRITTEN = re.compile(r"(?P<head>[0-9a-f]+)(?:(?:\.\.+|…)(?P<tail>[0-9a-f]+))?")
_CANDIDATES_NAMED = 5
"""The most ids that an error names."""


class Ambiguous(JobNotFound):
    """A shortened id means several jobs."""

    def __init__(self, written: str, found: Sequence[JobId]) -> None:
        super().__init__(written)
        named = ", ".join(str(id) for id in found[:_CANDIDATES_NAMED])
        more = ", …" if len(found) > _CANDIDATES_NAMED else ""
        self.args = (f"{written} means several jobs: {named}{more}: write more of the id",)


class Unwritable(JobNotFound):
    """The text cannot be an id."""

    def __init__(self, written: str) -> None:
        super().__init__(written)
        self.args = (f"{written!r} is not a job id: write its 24 digits 0-9a-f, or as `taskqueue list` shows it",)


def short(id: JobId | str) -> str:
    """Return the id as lists show it: its second, two dots, its counter.

    A prefix alone is not enough: ids that one process makes in one second differ only at the end.
    """
    text = str(id)
    return f"{text[:HEAD]}..{text[-TAIL:]}"


def named(record: Record) -> str:
    """Return the id of the job as lists show it: its text if it has one."""
    return record.id_text or short(record.id)


def resolve(store: Store, written: str) -> Record:
    """Return the record of the id. Raises ``JobNotFound``, also for an ambiguous one, naming the candidates."""
    if not JobId.is_valid(written):
        with_text = with_id_text(store, written)
        if with_text is not None:
            return with_text
    parts = _WRITTEN.fullmatch(written.strip().lower())
    if parts is None or len(parts["head"]) + len(parts["tail"] or "") > LENGTH:
        raise Unwritable(written)
    head, tail = parts["head"], parts["tail"]
    records = _beginning(store, head) if tail is None else _with_end(store, head, tail)
    if not records:
        raise JobNotFound(written)
    if len(records) > 1:
        raise Ambiguous(written, [record.id for record in records])
    return records[0]


def _beginning(store: Store, head: str) -> list[Record]:
    return store.find(_between(head, head), order="id", limit=_CANDIDATES_NAMED + 1)


def _with_end(store: Store, head: str, tail: str) -> list[Record]:
    """Return the records with this prefix and suffix.

    Ids between the two are fixed for one process, so this leaps from process to process instead of reading every job.
    """
    found: list[Record] = []
    lowest = head
    while len(found) <= _CANDIDATES_NAMED:
        first = store.find(_between(lowest, head), order="id", limit=1)
        if not first:
            break
        middle = str(first[0].id)[: LENGTH - len(tail)]
        found += store.find(_between(middle + tail, middle + tail), order="id", limit=1)
        if set(middle[len(head) :]) <= {"f"}:
            break
        lowest = f"{int(middle, 16) + 1:0{len(middle)}x}"
    return found


def _between(lowest: str, highest: str) -> Query:
    """Return the query for ids between the lowest and the highest with these prefixes."""
    return And(
        (
            Compare("id", Operator.GTE, lowest.ljust(LENGTH, "0")),
            Compare("id", Operator.LTE, highest.ljust(LENGTH, "f")),
        )
    )
