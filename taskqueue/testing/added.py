"""Finds the jobs that a test expects to be added, and describes how others differ from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from taskqueue.errors import InvalidJob
from taskqueue.model.job_path import path_of
from taskqueue.model.meta import META
from taskqueue.model.options import checked
from taskqueue.model.options.new_record import changed, in_force
from taskqueue.model.serializer import decode, encode
from taskqueue.scheduler.process import Process

SHOWN = 10
"""The most other jobs that a message lists."""

SHORT = 200
"""The most characters of a value that a message shows."""


class Expected:
    """A job as a test expects it: its class, and the data and options that the test names."""

    def __init__(self, job: Any, data: Any, options: Mapping[str, Any]) -> None:
        """If ``data`` is a mapping, it names some keys of the job's data; another value but None is all of the data."""
        self._path = path_of(job)
        self._data = data
        self._given = checked(options, "assert_added")
        self._meta = self._given.get(META, {})
        self._options = dict(options)

    def __str__(self) -> str:
        data = {} if self._data is None else {"data": self._data}
        return self._path + "".join(f" {name}={_short(value)}" for name, value in {**data, **self._options}.items())

    def matches(self, process: Process) -> bool:
        """Return whether the job is as expected."""
        return process.job == self._path and not self._differences(process)

    def beside(self, added: Sequence[Process]) -> str:
        """Return the jobs that were added instead, those of the expected class first, each with its differences."""
        if not added:
            return "no job was added"
        nearest = sorted(added, key=lambda process: process.job != self._path)
        lines = [f"  {self._line(process)}" for process in nearest[:SHOWN]]
        more = [f"  and {len(nearest) - SHOWN} more"] if len(nearest) > SHOWN else []
        return "\n".join(["added were:", *lines, *more])

    def _line(self, process: Process) -> str:
        shown = f"{process.job} data={_short(process.data)} queue={process.queue!r} {process.status.name}"
        differences = self._differences(process) if process.job == self._path else []
        return f"{shown} <- {'; '.join(differences)}" if differences else shown

    def _differences(self, process: Process) -> list[str]:
        options = in_force(process.snapshot)
        others = [f"{name} is {_short(options.get(name))}" for name in changed(process.snapshot, self._given)]
        meta = process.meta
        others += [
            f"meta[{key!r}] is {_short(meta.get(key))}" for key, value in self._meta.items() if meta.get(key) != value
        ]
        return _data_differences(self._data, decode(process.snapshot.data), process.data) + others


def _data_differences(wanted: Any, plain: Any, data: Any) -> list[str]:
    """Return how a job's data, as stored and as its class declares it, differs from the expected data."""
    if wanted is None:
        return []
    if not isinstance(wanted, Mapping) or not isinstance(plain, dict):
        return [] if _is_one_of(wanted, plain, data) else [f"data is {_short(data)}"]
    missing = [f"data has no {name!r}" for name in wanted if name not in plain]
    return missing + [
        f"data[{name!r}] is {_short(plain[name])}"
        for name in wanted
        if name in plain and not _is_one_of(wanted[name], plain[name], getattr(data, str(name), plain[name]))
    ]


def _is_one_of(wanted: Any, *kept: Any) -> bool:
    """Return whether the value, or its stored form, is one of these."""
    if wanted in kept:
        return True
    try:
        return decode(encode(wanted)) in kept
    except InvalidJob:  # of a type that only the class can encode
        return False


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHORT else f"{text[:SHORT]}…"
