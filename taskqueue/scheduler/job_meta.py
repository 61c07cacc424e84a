"""Completes the meta of a job before it is added: inherited from the running job, then its own, then ``before_add``."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from taskqueue.errors import ConfigError, InvalidOption, TaskqueueError
from taskqueue.model.job_path import path_of
from taskqueue.model.log_fields import CURRENT
from taskqueue.model.meta import META
from taskqueue.model.options import checked
from taskqueue.model.shown_text import as_code

log = logging.getLogger(__name__)


class NewJob:
    """A job that is about to be added, as ``before_add`` sees it: whatever is put into its ``meta`` travels with it.

    ``job`` is the import path of its class or function, ``data`` and ``options`` are the arguments of the call.
    """

    __slots__ = ("data", "job", "meta", "options")

    def __init__(self, job: str, data: Any, options: Mapping[str, Any], meta: dict[str, str]) -> None:
        self.job = job
        """The import path of its class or function."""
        self.data = data
        """The data as they were passed."""
        self.options = options
        """The options of the call."""
        self.meta = meta
        """The inherited meta, and the meta of the call, which wins."""

    def __repr__(self) -> str:
        return f"<NewJob {self.job}>"


BeforeAdd: TypeAlias = Callable[[NewJob], Any]


class CompleteMeta(dict[str, str]):
    """The meta of a job as it will be stored."""


def check_plain(before_add: BeforeAdd | None) -> BeforeAdd | None:
    """Return the hook of a blocking client; raise ``ConfigError`` if it would have to be awaited."""
    if before_add is not None:
        from inspect import iscoroutinefunction

        if iscoroutinefunction(before_add):
            raise ConfigError(f"before_add={before_add!r} is a coroutine function: pass it to an AsyncScheduler")
    return before_add


def completed(before_add: BeforeAdd | None, job: Any, data: Any, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options of a call with all of its job's meta."""
    new = _begun(before_add, job, data, options)
    if new is None:
        return options
    if before_add is not None:
        with _undone_on_error(new):
            before_add(new)
    return _with(options, new.meta)


async def completed_in_loop(
    before_add: BeforeAdd | None, job: Any, data: Any, options: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Do as ``completed``; the hook may be a coroutine function."""
    new = _begun(before_add, job, data, options)
    if new is None:
        return options
    if before_add is not None:
        with _undone_on_error(new):
            returned = before_add(new)
            if isinstance(returned, Awaitable):
                await returned
    return _with(options, new.meta)


def completed_entries(before_add: BeforeAdd | None, entries: Iterable[Any]) -> Iterable[Any]:
    """Return the entries of ``add_jobs`` with the meta of their jobs; malformed entries stay, to be refused."""
    _check_iterable(entries)
    return entries if before_add is None and CURRENT.get() is None else _each_completed(before_add, entries)


def _each_completed(before_add: BeforeAdd | None, entries: Iterable[Any]) -> Iterator[Any]:
    for entry in entries:
        if _is_entry(entry):
            yield entry[0], entry[1], completed(before_add, *_parts(entry))
        else:
            yield entry


async def completed_entries_in_loop(before_add: BeforeAdd | None, entries: Iterable[Any]) -> Iterable[Any]:
    """Do as ``completed_entries``; the hook may be a coroutine function."""
    _check_iterable(entries)
    if before_add is None and CURRENT.get() is None:
        return entries
    return [
        (entry[0], entry[1], await completed_in_loop(before_add, *_parts(entry))) if _is_entry(entry) else entry
        for entry in entries
    ]


def _check_iterable(entries: object) -> None:
    if not isinstance(entries, Iterable):
        raise InvalidOption(f"jobs={as_code(entries)} of add_jobs: pass a list of (job, data) or (job, data, options)")


def _begun(before_add: BeforeAdd | None, job: Any, data: Any, options: Mapping[str, Any]) -> NewJob | None:
    """Return the job with inherited meta and its own, which wins; None if there is nothing to complete."""
    run = CURRENT.get()
    inherited = {} if run is None else run.meta
    own = options.get(META)
    if isinstance(own, CompleteMeta) or not (inherited or before_add):
        return None
    path = path_of(job)
    own_checked = checked({META: own}, path)[META] if META in options else {}
    return NewJob(path, data, options, {**inherited, **own_checked})


def _with(options: Mapping[str, Any], meta: Any) -> Mapping[str, Any]:
    """Return the options with all of the job's meta. What a hook set and is not a mapping will be refused."""
    return {**options, META: CompleteMeta(meta) if isinstance(meta, Mapping) else meta}


@contextmanager
def _undone_on_error(new: NewJob) -> Iterator[None]:
    """Give the job its previous meta if the hook fails, and log that; an error of this package is raised."""
    meta = dict(new.meta)
    try:
        yield
    except TaskqueueError:
        raise
    except Exception as error:
        new.meta = meta
        log.error("before_add failed; the job is added with its previous meta: %s", new.job, exc_info=error)


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, tuple | list) and 2 <= len(entry) <= 3 and isinstance((*entry, {})[2], Mapping)


def _parts(entry: Any) -> tuple[Any, Any, Mapping[str, Any]]:
    job, data, options = (*entry, {})[:3]
    return job, data, options
