"""Records actions in the audit: those of dashboard users, and of the user of this process on the command line."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeAlias

from taskqueue.errors import InvalidOption, StoreUnavailable, TaskqueueError
from taskqueue.insight.records import LARGEST_PAGE
from taskqueue.model.audit import AuditEntry
from taskqueue.model.options import named, validators
from taskqueue.model.record import Status
from taskqueue.model.secret_keys import SecretKeys
from taskqueue.model.serializer import LONGEST_TEXT, clean, clipped
from taskqueue.model.shown_text import as_code
from taskqueue.scheduler.controls import user
from taskqueue.scheduler.operations import OPERATIONS
from taskqueue.store import Store
from taskqueue.store.arguments import wrong_audit_cursor

log = logging.getLogger(__name__)

STOPS = frozenset(
    {"cancel", "stop bulk action", "pause schedule", *(name for name, each in OPERATIONS.items() if each.is_stop)}
)
"""Actions that keep jobs from running. They are done even if the audit cannot be written: any job can be stopped."""

Keep: TypeAlias = Callable[[str, str, Mapping[str, Any]], None]
"""Records an action, its target and its details in the audit."""


def record(store: Store, action: str, target: str, *, by: str, source: str, about: Mapping[str, Any] | None) -> None:
    """Write an entry to the audit: ``by`` did ``action`` to ``target`` from ``source``."""
    words = {"by": by, "action": action, "target": target, "source": source}
    for name, value in words.items():
        if not isinstance(value, str):
            raise InvalidOption(f"{name}={as_code(value)} of an action: pass text")
    clipped_words = {name: clipped(value) for name, value in words.items()}
    store.record_action(AuditEntry(at=store.now(), **clipped_words, about=_details(about)))


def _details(about: Any) -> Mapping[str, Any]:
    try:
        if about is None or isinstance(about, Mapping):
            return dict(_cleaned(json.loads(json.dumps(dict(about or {}), allow_nan=False))))
    except (TypeError, ValueError, RecursionError):
        pass
    raise InvalidOption(f"about={as_code(about)} of an action: pass a mapping of texts to JSON values")


def _cleaned(value: Any) -> Any:
    """Return a JSON value whose texts can be shown: an answer with a lone surrogate could not be encoded."""
    match value:
        case str():
            return clean(value)
        case dict():
            return {clean(key): _cleaned(item) for key, item in value.items()}
        case list():
            return [_cleaned(item) for item in value]
    return value


def entries(store: Store, limit: int, before: str | None) -> list[AuditEntry]:
    """Return up to ``limit`` entries before this cursor, the newest first."""
    named("limit", limit, validators.whole(1, LARGEST_PAGE))
    if before is not None and not isinstance(before, str):
        raise wrong_audit_cursor(before)
    return store.audit(limit, before)


@contextmanager
def acting(keep: Keep, action: str, target: str, about: Mapping[str, Any]) -> Iterator[None]:
    """Write the action of the block to the audit before the block runs; if it is refused, write that afterwards.

    So every action has its entry, even if the process is killed in the middle. Only the entry of a stop may be in
    the log instead.
    """
    try:
        keep(action, target, about)
    except StoreUnavailable as error:
        if action not in STOPS:
            raise
        log.error("not recorded in the audit: %s of %r %s: %s", action, target, dict(about), error)
    try:
        yield
    except StoreUnavailable:  # it may have been done
        raise
    except TaskqueueError as error:
        keep(f"{action} refused", target, {"error": type(error).__name__})
        raise


def acting_command(store: Store, action: str, target: str, **about: Any) -> AbstractContextManager[None]:
    """Write the action of the block to the audit, by the user of this process, from the command line of this host."""

    def keep(action: str, target: str, about: Mapping[str, Any]) -> None:
        record(store, action, target, by=user(), source=f"command line of {socket.gethostname()}", about=about)

    return acting(keep, action, target, {key: clean_value(one) for key, one in about.items()})


def clean_value(value: Any) -> Any:
    """Return a detail as it is stored: text of bounded length."""
    return clipped(value) if isinstance(value, str) else value


def shown_query(query: Mapping[str, Any], keys: SecretKeys | None = None) -> str:
    """Return a query as it is stored in the audit, which all users see: secret values are masked."""
    shown = _tidy((keys or SecretKeys()).masked(query))
    return json.dumps(shown, default=str, ensure_ascii=False)[:LONGEST_TEXT]


def _tidy(query: Mapping[str, Any]) -> dict[str, Any]:
    """Return an equal query as a person would write it: statuses by name, and no $and or $in that is not needed."""
    parts: list[dict[str, Any]] = []
    for name, value in query.items():
        if name == "$and":
            parts += map(_tidy, value)
        else:
            parts.append({name: [*map(_tidy, value)] if name == "$or" else _tidy_value(name, value)})
    first: dict[str, Any] = {}
    others = []
    for part in parts:
        if first.keys().isdisjoint(part):
            first |= part
        else:
            others.append(part)
    return {"$and": [first, *others]} if others else first


def _tidy_value(name: str, value: Any) -> Any:
    match value:
        case {"$in": [single]} if len(value) == 1:
            return _tidy_value(name, single)
        case dict():
            return {word: _tidy_value(name, item) for word, item in value.items()}
        case list():
            return [_tidy_value(name, item) for item in value]
        case int() if name == "status":
            return Status(value).name
    return value
