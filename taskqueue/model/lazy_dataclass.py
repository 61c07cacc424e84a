"""The standard library's decorator ``dataclass``, applied when a class is first used instead of on import.

Making the methods of one dataclass takes about half a millisecond; a program that adds a job uses few of the classes
that it imports.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from operator import attrgetter
from threading import RLock
from typing import TYPE_CHECKING, Any

from taskqueue.model.other_systems import ARGUMENTS, explained

_lock = RLock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
_unmade: dict[type, dict[str, bool]] = {}
"""The classes that have not been used yet, with the arguments of the decorator."""


_STUBS = ("__init__", "__dataclass_fields__", "__signature__")
"""The attributes of a class that make it; ``inspect.signature`` asks for the last, which a dataclass does not have."""


class _Stub:
    """Stands for an attribute of a class until the class is made."""

    def __init__(self, kind: type, read: Callable[[type], Any]) -> None:
        self._kind = kind
        self._read = read

    def __get__(self, instance: object, owner: type) -> Any:
        _make(self._kind)
        return self._read(owner)


def _make(kind: type) -> None:
    """Give the class the methods of a dataclass with the same body, ``__init__`` last: other threads wait for it."""
    with _lock:
        if kind not in _unmade:
            return
        options = _unmade[kind]
        body = {name: value for name, value in vars(kind).items() if name not in ("__dict__", "__weakref__", *_STUBS)}
        made = vars(dataclasses.dataclass(**options)(type(kind.__name__, kind.__bases__, dict(body))))
        for name in (body.keys() - made.keys()) | {"__signature__"}:
            delattr(kind, name)
        added = {name: made[name] for name in made.keys() - body.keys() if name not in ("__dict__", "__weakref__")}
        changed = {name: made[name] for name in body.keys() & made.keys() if made[name] is not body[name]}
        init = added.pop("__init__")
        frozen = dict.fromkeys(added.keys() & {"__setattr__", "__delattr__"}, _refuse)
        for name, value in {**changed, **added, **frozen}.items():
            setattr(kind, name, value)
        kind.__init__ = explained(init, kind.__name__) if kind.__name__ in ARGUMENTS else init  # type: ignore[misc]
        del _unmade[kind]


def _refuse(self: object, name: str, _value: object = None) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to {name!r} of {type(self).__name__}")


def make_all() -> None:
    """Make the classes that have not been used yet, before forking processes that would each make them."""
    for kind in tuple(_unmade):
        _make(kind)


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # noqa: PLC0414
else:

    def dataclass(**options: bool) -> Callable[[type], type]:
        """Make the class a dataclass when it is first used; it takes the options of ``dataclasses.dataclass``."""

        def decorate(kind: type) -> type:
            if "__init__" in vars(kind) or "slots" in options:
                return dataclasses.dataclass(**options)(kind)

            def make(self: Any, *args: Any, **kwargs: Any) -> None:
                _make(kind)
                kind.__init__(self, *args, **kwargs)

            _unmade[kind] = options
            kind.__init__ = make
            for name in _STUBS[1:]:
                setattr(kind, name, _Stub(kind, attrgetter(name)))
            return kind

        return decorate
