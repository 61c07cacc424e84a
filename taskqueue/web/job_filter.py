"""The filter of the list of jobs, as its address says it: one query for the page, its actions and its links."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import urlencode

from taskqueue.errors import InvalidQuery, Unreadable
from taskqueue.model.query import parse
from taskqueue.model.record import Status
from taskqueue.model.serializer import decode
from taskqueue.web.words import WORDS

STATUSES: Mapping[str, tuple[Status, ...]] = {
    **{word: (status,) for status, word in WORDS.items()},
    "pending": tuple(status for status in Status if status.is_pending),
    "final": tuple(status for status in Status if status.is_final),
    "bad": (Status.FAILED, Status.TIMEOUT),
}
"""The words of ``status`` in an address, and what each stands for."""

_NAMES = {status.name: word for status, word in WORDS.items()}
"""The word of each name that a status has in JSON."""

FIELDS = ("status", "queue", "job", "tag", "since", "error", "q")
"""The parameters of an address that are part of the filter."""


@dataclass(frozen=True, kw_only=True)
class JobFilter:
    """What the list shows, as text in the form in which it was written."""

    status: str = ""
    queue: str = ""
    job: str = ""
    tag: str = ""
    since: str = ""
    """Ended after this moment, in milliseconds since 1970."""
    error: str = ""
    """A part of the error: of its class or its text."""
    q: str = ""
    """A query as JSON, for all else."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> JobFilter:
        """Return the filter of an address or a form."""
        values = {name: given.get(name, "").strip() for name in FIELDS}
        return cls(**values | {"status": _NAMES.get(values["status"], values["status"])})

    def query(self) -> dict[str, Any]:
        """Return the query. Raises ``InvalidQuery``."""
        parts: list[Any] = []
        if self.status:
            statuses = STATUSES.get(self.status)
            if statuses is None:
                raise InvalidQuery(f"status={self.status!r}: use {', '.join(STATUSES)}")
            parts.append({"status": {"$in": [int(status) for status in statuses]}})
        parts += [{name: getattr(self, name)} for name in ("queue", "job") if getattr(self, name)]
        if self.tag:
            parts.append({"tags": self.tag})
        if self.since:
            parts.append({"ended_at": {"$gte": self._since()}})
        if self.error:
            part = {"$contains": self.error}
            parts.append({"$or": [{"error.message": part}, {"error.type": part}]})
        if self.q:
            parts.append(self._written())
        query = {} if not parts else parts[0] if len(parts) == 1 else {"$and": parts}
        parse(query)
        return query

    def address(self, **changes: str) -> str:
        """Return the filter with these changes as the part of an address after the question mark."""
        fields = {name: getattr(self, name) for name in FIELDS} | changes
        return urlencode({name: value for name, value in fields.items() if value})

    def fields(self) -> dict[str, str]:
        """Return the filter as the fields of a form."""
        return {name: getattr(self, name) for name in FIELDS if getattr(self, name)}

    def says(self) -> str:
        """Return the filter in words: ``waiting jobs of queue mail``."""
        words = [self.status, "jobs"] if self.status else ["jobs"]
        words += [f"{word} {value}" for word, value in (("of queue", self.queue), ("of class", self.job)) if value]
        if self.tag:
            words.append(f"with tag {self.tag}")
        if self.since:
            words.append(f"that ended after {self._since():%Y-%m-%d %H:%M} UTC")
        if self.error:
            words.append(f"whose error contains {self.error}")
        if self.q:
            words.append(f"that match {self.q}")
        return " ".join(words)

    def _since(self) -> datetime:
        return moment("since", self.since)

    def _written(self) -> Any:
        try:
            json.loads(self.q)
            return decode(self.q)
        except (RecursionError, Unreadable, ValueError) as error:
            example = '{"data.to": "ann@example.org"}'
            raise InvalidQuery(f"the query is not JSON ({error}): write such as {example}") from None


def moment(name: str, text: str) -> datetime:
    """Return the time that a parameter names in milliseconds since 1970. Raises ``InvalidQuery``."""
    try:
        return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=int(text))
    except (ValueError, OverflowError):
        raise InvalidQuery(f"{name}={text[:50]!r}: pass milliseconds since 1970") from None
