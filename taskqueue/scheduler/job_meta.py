"""Completes the meta of a job that is to be added: one that is added within a run inherits that of the running job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from taskqueue.model.job_path import path_of
from taskqueue.model.log_fields import CURRENT
from taskqueue.model.meta import META
from taskqueue.model.options import checked


def with_meta(job: Any, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options of a call with what the job inherits; its own values win."""
    run = CURRENT.get()
    if run is None or not run.meta:
        return options
    own = checked({META: options[META]}, path_of(job))[META] if META in options else {}
    return {**options, META: {**run.meta, **own}}


def entries_with_meta(entries: Iterable[Any]) -> Iterable[Any]:
    """Return the entries of ``add_jobs`` with what their jobs inherit; those of another form are left to be refused."""
    run = CURRENT.get()
    return entries if run is None or not run.meta else _completed(entries)


def _completed(entries: Iterable[Any]) -> Iterator[Any]:
    for entry in entries:
        if isinstance(entry, tuple | list) and 2 <= len(entry) <= 3 and isinstance((*entry, {})[2], Mapping):
            yield entry[0], entry[1], with_meta(entry[0], (*entry, {})[2])
        else:
            yield entry
