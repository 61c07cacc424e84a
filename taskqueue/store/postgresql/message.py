"""Sends statements together: each waits until a result is asked for, then all of them are one message to the server.

The message is of the simple protocol, so that ``BEGIN`` and ``LOCK TABLE`` travel with the first statement, and the
last ones with ``COMMIT``. A statement that is used again is prepared once in each session and then sent by its name.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import psycopg
from psycopg import sql

AT_ONCE = 100
"""Maximum number of statements of one message."""

LONG = 1_000_000
"""A message is sent after this many characters, so that a large add is not held in memory twice."""

PREPARED_AFTER = 5
"""How often a statement is sent as text before it is prepared: an operator's query is sent only a few times."""

MOST_PREPARED = 200
"""Maximum number of prepared statements of a session; each costs memory of the server."""

_MOST_COUNTED = 2000
_FEW_VALUES = 32
"""With up to this many values, a statement is prepared for each combination of types; with more, only for the first."""

_PREPARED_VERBS = ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")
_TYPES = {int: "bigint", float: "double precision", bool: "boolean"}
_NAME = re.compile(r"%\((\w+)\)s")
_Key: TypeAlias = tuple[str, tuple[str, ...]]


class Answer:
    """What a statement has found or changed; reading it sends the statement, and all that wait before it."""

    __slots__ = ("_message", "_rowcount", "_rows")

    lastrowid = None

    def __init__(self, message: Message) -> None:
        self._message = message
        self._rowcount = -1
        self._rows: Iterator[Any] | None = None

    def take(self, cursor: psycopg.Cursor[Any]) -> None:
        """Keep the current result of the cursor."""
        self._rowcount = cursor.rowcount
        self._rows = iter(cursor.fetchall() if cursor.description else ())

    @property
    def rowcount(self) -> int:
        """How many rows were changed, or found."""
        self._come()
        return self._rowcount

    def fetchone(self) -> Any:
        """Return the next row, None if there is none."""
        return next(self._come(), None)

    def fetchall(self) -> list[Any]:
        """Return all rows that are left."""
        return list(self._come())

    def __iter__(self) -> Iterator[Any]:
        return self._come()

    def _come(self) -> Iterator[Any]:
        if self._rows is None:
            self._message.send()
        if self._rows is None:
            raise psycopg.OperationalError("the transaction of the statement was undone before it was sent")
        return self._rows


class Message:
    """The statements of one connection that wait to be sent."""

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self.raw = raw
        self.prepares = True
        """Whether statements are prepared: a pooler may switch to a session in which they are not."""
        self.texts: list[str] = []
        """The waiting statements, as they are sent to the server."""
        self._answers: list[Answer | None] = []
        self._length = 0
        self._used: Counter[_Key] = Counter()
        self._prepared: dict[_Key, str] = {}
        self._new: dict[_Key, str] = {}
        self._names = 0

    def add(self, statement: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> Answer:
        """Queue a statement with the driver's placeholders, after others if many wait, and return its answer."""
        if len(self.texts) >= AT_ONCE or self._length >= LONG:
            self.send()
        return self.queue(statement, values)

    def queue(self, statement: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> Answer:
        """Queue a statement for the message of the waiting ones, however long that is; return its answer."""
        names = _names_in(statement) if isinstance(values, Mapping) else ()
        given = [values[name] for name in names] if isinstance(values, Mapping) else list(values)
        literals = [self._literal(value) for value in given]
        key = statement, tuple(_TYPES.get(type(value), "unknown") for value in given[:_FEW_VALUES])
        name = self._prepared.get(key) or self._new.get(key)
        if name is None and self._is_worth_it(key):
            self._names += 1
            name = self._new[key] = f"taskqueue{self._names}"
            types = ", ".join(_TYPES.get(type(value), "unknown") for value in given)
            text = _filled(statement, names, [f"${number}" for number in range(1, len(given) + 1)])
            self.add_plain([f"PREPARE {name} ({types}) AS {text}" if types else f"PREPARE {name} AS {text}"])
        if name is None:
            text = _filled(statement, names, literals)
        else:
            text = f"EXECUTE {name} ({', '.join(literals)})" if literals else f"EXECUTE {name}"
        answer = Answer(self)
        self.texts.append(text)
        self._answers.append(answer)
        self._length += len(text)
        return answer

    def add_plain(self, statements: Sequence[str]) -> None:
        """Queue statements without values whose results are not needed."""
        self.texts.extend(statements)
        self._answers.extend([None] * len(statements))

    def send(self) -> None:
        """Send all statements that wait and keep their results; the first one that fails ends the message."""
        texts, answers, new = self.texts, self._answers, self._new
        self.forget()
        if not texts:
            return
        cursor = self.raw.cursor()
        cursor.execute(";".join(texts))
        self._prepared.update(new)
        for answer in answers:
            if answer is not None:
                answer.take(cursor)
            cursor.nextset()

    def forget(self) -> None:
        """Discard the waiting statements."""
        self.texts, self._answers, self._length, self._new = [], [], 0, {}

    def _is_worth_it(self, key: _Key) -> bool:
        if not self.prepares or len(self._prepared) + len(self._new) >= MOST_PREPARED:
            return False
        if not key[0].lstrip().startswith(_PREPARED_VERBS):
            return False
        if len(self._used) >= _MOST_COUNTED:
            self._used.clear()
        self._used[key] += 1
        return self._used[key] > PREPARED_AFTER

    def _literal(self, value: object) -> str:
        if value is None:
            return "NULL"
        if type(value) is int:
            return str(value) if value >= 0 else f" {value}"  # a minus after another one would begin a comment
        return sql.quote(value, self.raw)


def _filled(statement: str, names: Sequence[str], values: Sequence[str]) -> str:
    """Return the statement with its placeholders replaced by these texts."""
    return statement % (dict(zip(names, values, strict=True)) if names else tuple(values))


@functools.lru_cache(maxsize=2048)
def _names_in(statement: str) -> tuple[str, ...]:
    """Return the names of its placeholders, without duplicates."""
    return tuple(dict.fromkeys(_NAME.findall(statement)))
