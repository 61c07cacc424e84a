"""Takes exception groups apart: the errors in them, however deeply nested, and the classes of the groups around each.

Python 3.10 has no groups of its own; groups of the package ``exceptiongroup`` are taken apart if a job has imported it.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple


class Leaf(NamedTuple):
    """An error that is not a group, and the classes of the groups that contain it, outermost first."""

    error: BaseException
    groups: tuple[type[BaseException], ...] = ()

    @property
    def classes(self) -> tuple[type[BaseException], ...]:
        """Return the classes of the error, its own first, and the classes of its groups; ``object`` is left out."""
        kinds = (type(self.error), *self.groups)
        return tuple(dict.fromkeys(base for kind in kinds for base in kind.__mro__[:-1]))


def leaves(error: BaseException) -> list[Leaf]:
    """Return the errors of a group, however deeply nested, in order; for any other error, return just that error."""
    errors: list[Leaf] = []
    rest = [Leaf(error)]
    while rest:
        leaf = rest.pop()
        members = _members(leaf.error)
        if not members:
            errors.append(leaf)
        groups = (*leaf.groups, type(leaf.error))
        rest += (Leaf(member, groups) for member in reversed(members))
    return errors


def related(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, the errors in groups, and the cause and context of each; every error once."""
    seen: set[int] = set()  # by identity: an error's == may be user code, and raise
    rest: list[BaseException | None] = [error]
    while rest:
        current = rest.pop()
        if current is None or id(current) in seen:  # an error may be its own cause
            continue
        seen.add(id(current))
        yield current
        rest += _members(current)
        rest.append(current.__context__ if current.__cause__ is None else current.__cause__)


def _members(error: BaseException) -> tuple[BaseException, ...]:
    """Return the errors of a group; nothing for an error that is not a group."""
    kind: Any = getattr(builtins, "BaseExceptionGroup", None) or getattr(
        sys.modules.get("exceptiongroup"), "BaseExceptionGroup", None
    )
    if kind is None or not isinstance(error, kind):
        return ()
    members: tuple[BaseException, ...] = kind.exceptions.__get__(error)  # a subclass may define its own attribute
    return members
