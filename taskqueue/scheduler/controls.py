"""Controls for all nodes of a store: pause queues, drain nodes and change limits."""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import time
from dataclasses import replace
from datetime import datetime
from typing import Any

from taskqueue.errors import InvalidOption, WaitTimeout
from taskqueue.model.controls import EVERY_QUEUE, Control, Kind
from taskqueue.model.job_path import path_of
from taskqueue.model.limits import Family, Limit, declared, family_of, scope_of
from taskqueue.model.log_fields import CURRENT
from taskqueue.model.options import named, validators, value_of
from taskqueue.model.query import RUNNING, And, Compare, Operator, Query
from taskqueue.model.serializer import clipped
from taskqueue.scheduler.wait import of_running_job
from taskqueue.store import Store
from taskqueue.store.bell import NEWS

_CLASS = r"[^\W\d]\w*(\.[^\W\d]\w*)*\.[A-Z]\w*"
"""Matches a class path that was written with dots alone."""


def set_once(store: Store, kind: Kind, name: str | None, reason: str, by: str | None) -> Control:
    """Pause a queue, or drain a node, running or not, and return the control; one that is set keeps its time.

    The name None is every queue.
    """
    new = _control(store.now(), kind, _checked(kind, name), reason, by)
    since = next((control.since for control in in_force(store, kind) if control.name == new.name), new.since)
    control = replace(new, since=since)
    store.set_control(control)
    return control


def clear(store: Store, kind: Kind, name: str | None) -> bool:
    """Clear a pause or a drain, and return whether there was one; the name None is every queue."""
    return store.clear_control(kind, _checked(kind, name))


def set_limit(store: Store, name: Any, limit: Any, reason: str, by: str | None) -> Control:
    """Give a limit another number; raise ``InvalidOption`` or ``InvalidJob``."""
    shared, path = _scope(name)
    value = declared(limit)
    if value.name not in (None, shared):
        raise InvalidOption(f"limit {value} has another name than {shared or path}: leave its name out")
    family = family_of(replace(value, name=shared), path)
    control = replace(_control(store.now(), Kind.LIMIT, family, reason, by), count=value.count)
    store.set_control(control)
    return control


def reset_limit(store: Store, name: Any) -> int:
    """Restore the declared numbers of the limits of this name or class; return how many were changed."""
    shared, path = _scope(name)
    scope = scope_of(shared, path)
    changed = [control for control in in_force(store, Kind.LIMIT) if Family.of(control.name).scope == scope]
    return sum(store.clear_control(control.kind, control.name) for control in changed)


def in_force(store: Store, kind: Kind) -> list[Control]:
    """Return the controls of this kind, by name."""
    return [control for control in store.controls().kept if control.kind is kind]


def until_idle(store: Store, control: Control, timeout: float | None) -> None:
    """Wait until no job of a paused queue or on a drained node runs; raise ``WaitTimeout`` naming the running ones."""
    deadline = None if timeout is None else time.monotonic() + timeout
    of = running_of(control)
    job_wait = None if CURRENT.get() is None else of_running_job(store, [record.id for record in store.find(of)])
    try:
        with contextlib.closing(store.bell(NEWS)) as bell:
            rings = select.poll()
            rings.register(bell.fileno(), select.POLLIN)
            while running := store.find(of):
                if job_wait is not None:
                    job_wait.look([record.id for record in running])
                seconds_left = bell.pause if deadline is None else deadline - time.monotonic()
                if seconds_left <= 0 and timeout is not None:
                    raise WaitTimeout([record.id for record in running], timeout)
                rings.poll(min(seconds_left, bell.pause if job_wait is None else job_wait.seconds) * 1000)
                bell.clear()
    finally:
        if job_wait is not None:
            job_wait.end()


def running_of(control: Control) -> Query:
    """Return the query for the running jobs that a control affects."""
    if control.kind is Kind.PAUSE and control.name == EVERY_QUEUE:
        return RUNNING
    field = "queue" if control.kind is Kind.PAUSE else "seat"
    return And((RUNNING, Compare(field, Operator.EQ, control.name)))


def _control(now: datetime, kind: Kind, name: str, reason: str, by: str | None) -> Control:
    author = clipped(str(by or user_and_host()))
    return Control(kind=kind, name=name, since=now, by=author, reason=clipped(str(reason)))


def user_and_host() -> str:
    """Return user and host of this process."""
    return f"{user()}@{socket.gethostname()}"


def user() -> str:
    """Return the user of this process; a container may have no name for it."""
    from getpass import getuser  # it takes milliseconds

    try:
        return os.environ.get("SUDO_USER") or getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def _checked(kind: Kind, name: str | None) -> str:
    if kind is Kind.PAUSE and name is None:
        return EVERY_QUEUE
    checked: str = named("node", name, validators.node) if kind is Kind.DRAIN else value_of("queue", name)
    return checked


def _scope(name: Any) -> tuple[str | None, str]:
    """Return the shared name, or else the class path, with which limits are declared."""
    if isinstance(name, str) and ":" not in name:
        if re.fullmatch(_CLASS, name):
            raise InvalidOption(f"limit of {name!r}: did you mean {':'.join(name.rsplit('.', 1))}?")
        return Limit(1, name=name).name, ""
    return None, path_of(name)
