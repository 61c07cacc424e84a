"""Received values: parts of a job's data, or all of it, that are the results of jobs it depends on (``receives``)."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any

from taskqueue.errors import InvalidJob, InvalidOption
from taskqueue.model.ids import JobId
from taskqueue.model.job_types import JobTypes
from taskqueue.model.lifecycle.recovered_copy import copy_of
from taskqueue.model.serializer import Placeholder

ONE, ALL = "result", "results"
"""The result of the only job that it depends on; the list of the results of all, in order."""

WHOLE = ""
"""The name of the part that is all the data."""


class Received(Placeholder):
    """Stands in data for a value that is received when the job runs."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __repr__(self) -> str:
        return f"<the {self.what} of the level before>"

    def __str__(self) -> str:
        raise TypeError(f"{self!r} is not known yet: receive it in the data, and build the text in the job")


def parts(receives: Sequence[str]) -> dict[str, str]:
    """Return the source of each part of the data, by its name."""
    name_and_source = (part.rpartition("=") for part in receives)
    return {name: what for name, _, what in name_and_source}


def taken_out(data: Any) -> tuple[Any, dict[str, str] | str]:
    """Return data without placeholders of received values, and the option that names their places."""
    if isinstance(data, Received):
        return None, data.what
    fields = _fields(data)
    if not isinstance(fields, Mapping):
        return data, {}
    received = {name: value.what for name, value in fields.items() if isinstance(value, Received)}
    if not received:
        return data, {}
    return {name: value for name, value in fields.items() if name not in received}, received


def _fields(data: Any) -> Any:
    """Return the fields of a dataclass as a mapping, other data unchanged."""
    if not dataclasses.is_dataclass(data) or isinstance(data, type):
        return data
    return {field.name: getattr(data, field.name) for field in dataclasses.fields(data) if field.init}


def check(receives: Sequence[str], depended: int, job: str) -> None:
    """Raise ``InvalidOption`` if one result is received and the job does not depend on exactly one other."""
    if ONE in parts(receives).values() and depended != 1:
        raise InvalidOption(
            f"{job}: receives={list(receives)!r}: {ONE!r} needs exactly one job in depends_on ({depended:,} given): "
            f"use {ALL!r} to get a list"
        )


def known_part(types: JobTypes | None, data: Any, receives: Sequence[str], where: str) -> Any:
    """Return the passed data, without the received parts, as they are kept.

    Raises ``InvalidJob`` with the path of a misfit.
    """
    names = parts(receives)
    if WHOLE in names:
        if data is not None:
            raise InvalidJob(f"{where} is {data!r}, but is also received (receives={names[WHOLE]!r}): pass only one")
        return None
    given = {} if data is None else _fields(data)
    if not isinstance(given, Mapping):
        raise InvalidJob(f"{where} is {data!r}, but parts of it are received: pass a mapping of the other parts")
    for name in names:
        if name in given:
            raise InvalidJob(f"{where}[{name!r}] is both passed and received (receives): leave one of them out")
    return given if types is None else types.encoded(given, where, tuple(names))


def completed(data: Any, receives: Sequence[str], results: Sequence[Any]) -> Any:
    """Return the data with the results, all in their stored form."""
    names = parts(receives)
    values = {name: results[0] if what == ONE else list(results) for name, what in names.items()}
    if WHOLE in names:
        return values[WHOLE]
    return {**({} if data is None else data), **values}


def sources(ids: Sequence[JobId]) -> Generator[list[JobId], Iterable[Any], dict[JobId, Any]]:
    """Yield ids, be sent the handles of those jobs, and return for each of ``ids`` the handle whose result counts.

    For a job without success that was recovered, this is its last copy. Jobs that are gone are left out.
    """
    latest: dict[JobId, Any] = {}
    to_read = {id: id for id in ids}
    while to_read:
        read = yield list(to_read.values())
        handles = {handle.id: handle for handle in read}
        latest |= {id: handles[now] for id, now in to_read.items() if now in handles}
        copies = {id: copy_of(latest[id].snapshot) for id in to_read if id in latest and not latest[id].is_done}
        to_read = {id: copy for id, copy in copies.items() if copy not in (None, latest[id].id)}
    return {id: latest[id] for id in ids if id in latest}
