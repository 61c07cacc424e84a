"""Keeps actions in the audit: of users of the dashboard, and of the user of this process on the command line."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeAlias

from taskqueue.errors import StoreUnavailable, TaskqueueError
from taskqueue.model.audit import AuditEntry
from taskqueue.model.secret_keys import SecretKeys
from taskqueue.model.serializer import LONGEST_TEXT, clipped
from taskqueue.scheduler.controls import user
from taskqueue.store import Store

Keep: TypeAlias = Callable[[str, str, Mapping[str, Any]], None]
"""Keeps an action, its target and its details in the audit."""


def record(store: Store, action: str, target: str, *, by: str, source: str, about: Mapping[str, Any] | None) -> None:
    """Keep who (``by``) did what (``action``) to what (``target``), and from where (``source``)."""
    by, action, target, source = (clipped(text) for text in (by, action, target, source))
    entry = AuditEntry(at=store.now(), by=by, action=action, target=target, source=source, about=about or {})
    store.record_action(entry)


@contextmanager
def acting(keep: Keep, action: str, target: str, about: Mapping[str, Any]) -> Iterator[None]:
    """Keep in the audit what the block is asked to do, before it does it; where it is refused, keep that behind it.

    So no action is without its entry, also where a process is killed in the middle.
    """
    keep(action, target, about)
    try:
        yield
    except StoreUnavailable:  # it may have been done
        raise
    except TaskqueueError as error:
        keep(f"{action} refused", target, {"error": type(error).__name__})
        raise


def acting_command(store: Store, action: str, target: str, **about: Any) -> AbstractContextManager[None]:
    """Keep what the user of this process does on the command line of this host in the block."""

    def keep(action: str, target: str, about: Mapping[str, Any]) -> None:
        record(store, action, target, by=user(), source=f"command line of {socket.gethostname()}", about=about)

    return acting(keep, action, target, {key: clean_value(one) for key, one in about.items()})


def clean_value(value: Any) -> Any:
    """Return a detail as it is kept: text of bounded length."""
    return clipped(value) if isinstance(value, str) else value


def shown_query(query: Any, keys: SecretKeys | None = None) -> str:
    """Return a query as it is kept in the audit, which all users see: secret values are masked."""
    return json.dumps((keys or SecretKeys()).masked(query), default=str, ensure_ascii=False)[:LONGEST_TEXT]
