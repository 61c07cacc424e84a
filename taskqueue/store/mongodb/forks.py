"""What begins anew in a forked child, before a thread of it can come by: locks and threads are its parent's."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forked(Protocol):
    """Something that a child inherits and cannot use as it is."""

    def begin_anew(self) -> None:
        """Let go of what is the parent's, without a word to it."""


_INHERITED: weakref.WeakSet[Forked] = weakref.WeakSet()


def begins_anew(one: Forked) -> None:
    """Have this one begin anew in every child that is forked from now on."""
    _INHERITED.add(one)


def _begin_anew() -> None:
    for one in list(_INHERITED):
        one.begin_anew()


os.register_at_fork(after_in_child=_begin_anew)
