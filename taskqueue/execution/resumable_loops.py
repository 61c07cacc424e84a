"""Resumable loops: ``Job.each`` continues after the last finished item, whatever ended the run."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import time
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import islice
from typing import Any

from taskqueue.model.job import Interrupted, Snooze
from taskqueue.model.run_context import AWAITED, AsyncSource, Item, Items, Loop
from taskqueue.model.serializer import clean, decode, encode
from taskqueue.model.shown_text import as_code

_UNREADABLE = "the positions of the loops of this job (each) cannot be read: add the job again"


class Loops:
    """The loops of one run and their positions, inner loops after outer ones.

    A position is the number of finished items, or a list with the cursor of the last one, empty at first.
    """

    def __init__(self, stored: str | None, keep: Callable[[str], None], stopping: Callable[[], bool]) -> None:
        self._stored = stored
        self._keep = keep
        self._stopping = stopping
        self._begun: set[str] = set()
        self._in_hand: dict[str, Any] = {}
        """The position of the last item of each manual loop, until the job keeps it."""
        self._present: dict[str, Any] = {}
        """The position of each loop's current item."""
        self._sizes: dict[str, int] = {}
        """The size of the current batch of each loop over batches."""

    def each(
        self, items: Items[Any], name: str, turn: float | None, batch: int | None = None, manual: bool = False
    ) -> Loop[Any]:
        """Return the items after the last finished one; see ``Job.each``."""
        _check(name, turn, batch, manual)
        if name in self._begun:
            raise ValueError(
                f"each(name={name!r}): this run already has a loop of that name: give each loop its own name"
            )
        for other in self._in_hand:
            raise RuntimeError(f"each(name={name!r}): {_not_kept(other)}")
        self._begun.add(name)
        self._sizes.pop(name, None)
        pairs, source = self._pairs(items, name)
        if batch is not None:
            pairs = self._batches(name, pairs, batch)
        walk = self._hand_out if manual else self._walk
        return Loop(walk(name, pairs, turn), partial(self._keep_in_hand, name), source)

    @property
    def key(self) -> str:
        """Return the name of the current items, the same in all runs, in letters, digits, ``.``, ``_`` and ``-``."""
        return "".join(f"-{self._part(name, place)}" for name, place in self._present.items())

    def _part(self, name: str, place: Any) -> str:
        loop = f"{name if re.fullmatch(r'[A-Za-z0-9_]{1,40}', name) else _digest(name)}." if name else ""
        size = f"x{self._sizes[name]}" if name in self._sizes else ""
        if isinstance(place, int):
            return f"{loop}{place}{size}"
        text = encode(place[0], "cursor")
        return f"{loop}c{text if re.fullmatch('[0-9]{1,40}', text) else _digest(text)}{size}"

    def _pairs(self, items: Items[Any], name: str) -> tuple[Iterable[tuple[Any, Any]], AsyncSource | None]:
        """Return the items after the loop's position, each with its own position, and their source if asynchronous."""
        place = self._places.get(name)
        if callable(items):
            if not isinstance(place, list):
                place = self._places[name] = []
            if not inspect.isasyncgenfunction(items):
                return _with_cursors(items, name, place), None
            source = AsyncSource(items(place[0] if place else None))
            return _with_cursors(lambda _: source, name, place), source
        if not isinstance(place, int):
            place = self._places[name] = 0
        if isinstance(items, AsyncIterable):
            source = AsyncSource(items)
            return _numbered(source, place), source
        return enumerate(_after(items, place), start=place + 1), None

    @cached_property
    def _places(self) -> dict[str, Any]:
        """Return the positions; raise ``ValueError`` inside the job for invalid text, so that its attempt fails."""
        try:
            places = {} if self._stored is None else decode(self._stored)
        except Exception as unreadable:
            raise ValueError(f"{_UNREADABLE}: {repr(self._stored)[:200]} ({unreadable})") from unreadable
        if not isinstance(places, dict):
            raise ValueError(f"{_UNREADABLE}: {repr(self._stored)[:200]}")
        return places

    def _walk(self, name: str, pairs: Iterable[tuple[Any, Item]], turn: float | None) -> Iterator[Item]:
        """Yield items, and keep the position of each when the next is requested."""
        head = self._head(name)
        ends_at = None if turn is None else time.monotonic() + turn
        try:
            for place, item in pairs:
                if self._stopping():
                    raise Interrupted("shutdown")
                if item is AWAITED:
                    yield item
                    continue
                self._present[name] = place
                yield item
                self._pass(name, place)
                self._keep(f"{head}{_text(place)}}}")
                if ends_at is not None and time.monotonic() >= ends_at:
                    raise Snooze(0)
        finally:
            self._present.pop(name, None)

    def _hand_out(self, name: str, pairs: Iterable[tuple[Any, Item]], turn: float | None) -> Iterator[Item]:
        """Yield items whose positions the job keeps; interrupt the job, or end its turn, only when all are kept."""
        first_place = self._places[name]
        ends_at = float("inf") if turn is None else time.monotonic() + turn
        try:
            for place, item in pairs:
                if name not in self._in_hand:
                    if self._stopping():
                        raise Interrupted("shutdown")
                    if time.monotonic() >= ends_at and self._places.get(name) != first_place:
                        raise Snooze(0)
                if item is AWAITED:
                    yield item
                    continue
                self._in_hand[name] = self._present[name] = place
                yield item
        finally:
            self._present.pop(name, None)

    def _keep_in_hand(self, name: str) -> None:
        """Keep the position of the last item that was handed out, unless that was done already."""
        if name not in self._in_hand:
            return
        place = self._in_hand[name]
        self._pass(name, place)
        self._keep(f"{self._head(name)}{_text(place)}}}")
        del self._in_hand[name]

    def _batches(self, name: str, pairs: Iterable[tuple[Any, Item]], size: int) -> Iterator[tuple[Any, list[Item]]]:
        """Yield lists of items, each with the position of its last item."""
        items: list[Item] = []
        for place, item in pairs:
            if item is AWAITED:
                yield place, item
                continue
            items.append(item)
            if len(items) == size:
                self._sizes[name] = size
                yield place, items
                items = []
            elif not self._in_hand and self._stopping():  # the job has not seen these items yet
                raise Interrupted("shutdown")
        if items:
            self._sizes[name] = len(items)
            yield place, items

    def _pass(self, name: str, place: Any) -> None:
        """Move the loop to another position and reset its inner loops."""
        self._check_present(name)
        while (last := next(reversed(self._places))) != name:
            if last in self._in_hand:
                raise RuntimeError(f"each(name={name!r}): {_not_kept(last)}")
            del self._places[last]
            self._begun.discard(last)
            self._present.pop(last, None)
        self._places[name] = place

    def _check_present(self, name: str) -> None:
        if name not in self._places:
            raise RuntimeError(f"each(name={name!r}) was started inside another loop, which has moved on since")

    def _head(self, name: str) -> str:
        """Return the text that precedes the position of this loop: the positions of its outer loops, and its name."""
        self._check_present(name)
        names = list(self._places)
        before = {other: self._places[other] for other in names[: names.index(name)]}
        text = encode(before, "cursor")[:-1]
        return f"{text}{',' if before else ''}{json.dumps(name)}:"


def _check(name: str, turn: float | None, batch: int | None, manual: bool) -> None:
    """Raise ``ValueError`` for invalid arguments."""
    if not isinstance(name, str) or name.startswith("$") or name != clean(name):
        raise ValueError(f"each(name={as_code(name)}): pass text that does not begin with '$'")
    if turn is not None and (isinstance(turn, bool) or not isinstance(turn, (int, float)) or not turn > 0):
        raise ValueError(f"each(turn={as_code(turn)}): pass seconds above 0, or None")
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        raise ValueError(f"each(batch={as_code(batch)}): pass the number of items in a list, 1 or more, or None")
    if not isinstance(manual, bool):
        raise ValueError(f"each(manual={as_code(manual)}): pass True or False")


def _not_kept(name: str) -> str:
    return f"the items that the loop {name!r} has handed out are not stored yet: call its keep() first"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _text(place: Any) -> str:
    return str(place) if isinstance(place, int) else encode(place, "cursor")


def _after(items: Iterable[Item], count: int) -> Iterable[Item]:
    """Return the items after the first ``count``."""
    if isinstance(items, Sequence):
        return (items[number] for number in range(count, len(items)))
    return islice(items, count, None)


def _numbered(source: AsyncSource, count: int) -> Iterator[tuple[int, Any]]:
    """Yield the items of the source after the first ``count``, each with its number."""
    number = 0
    for item in source:
        number += item is not AWAITED
        if item is AWAITED or number > count:
            yield number, item


def _with_cursors(items: Callable[[Any], Any], name: str, place: list[Any]) -> Iterator[tuple[Any, Item]]:
    """Yield the function's items after the cursor, each cursor as a position."""
    for pair in items(place[0] if place else None):
        if pair is AWAITED:
            yield None, pair
            continue
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(f"each(name={name!r}): yield pairs of a cursor and an item, not {as_code(pair)[:100]}")
        yield [pair[0]], pair[1]
