"""The store of a command: the one that ``--url`` names, opened when first needed and closed after the command."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cached_property, update_wrapper
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from taskqueue.scheduler.scheduler import Scheduler
    from taskqueue.store import Store


class StoreContext:
    """An existing store, and a scheduler on it."""

    def __init__(self, url: str | None) -> None:
        self.url = url

    @cached_property
    def store(self) -> Store:
        """The store, open. Raises ``StoreUnavailable`` if it does not exist."""
        from taskqueue.store.open import open_existing

        return open_existing(self.url)

    @cached_property
    def scheduler(self) -> Scheduler:
        """A scheduler on the same store."""
        from taskqueue.scheduler.scheduler import Scheduler

        return Scheduler(self.url if self.store else None)  # only after the store, which it would create

    def acting(self, action: str, target: str, **about: Any) -> AbstractContextManager[None]:
        """Record the action of the block and its target in the audit."""
        from taskqueue.scheduler import audit_trail

        return audit_trail.acting_command(self.store, action, target, **about)

    def close(self) -> None:
        """Close the store."""
        for name in ("scheduler", "store"):
            opened = self.__dict__.pop(name, None)
            if opened is not None:
                opened.close()


class NewStoreContext(StoreContext):
    """A store that is created if it does not exist."""

    @cached_property
    def store(self) -> Store:
        """The store, open."""
        from taskqueue.store.open import open_store

        return open_store(self.url)

    @cached_property
    def scheduler(self) -> Scheduler:
        """A scheduler on the same store."""
        from taskqueue.scheduler.scheduler import Scheduler

        return Scheduler(self.url)

    def open_anew(self) -> Scheduler:
        """Close the scheduler, and return a new one on the store that now has this name."""
        self.close()
        return self.scheduler


def pass_store(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command with the context of the group's ``--url`` as its first argument, closed afterwards."""
    return _with_context(command, StoreContext)


def pass_new_store(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command with the context as its first argument; the store is created by the first write."""
    return _with_context(command, NewStoreContext)


def _with_context(command: Callable[..., Any], kind: type[StoreContext]) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        ctx = click.get_current_context()
        context = kind(ctx.find_root().obj)
        ctx.call_on_close(context.close)
        return command(context, *args, **kwargs)

    return update_wrapper(called, command)
