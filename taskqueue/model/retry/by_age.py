"""The policy whose pause depends on the age of the job: a time table."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from taskqueue.errors import InvalidOption
from taskqueue.model.lazy_dataclass import dataclass
from taskqueue.model.retry.backoff import check_seconds
from taskqueue.model.retry.decision import Decision, GiveUp, RetryIn, Situation, within
from taskqueue.model.shown_text import as_code

Row = tuple[float, float]

DEFAULT_TABLE: tuple[Row, ...] = ((300.0, 60.0), (3600.0, 300.0), (86_400.0, 3600.0))
"""Up to 5 minutes each minute, up to an hour each 5 minutes, up to a day each hour."""


@dataclass(frozen=True)
class TableRetry:
    """Rows of (age, pause) in seconds: the first row whose age the job has not passed gives the pause; none gives up.

    An attempt that fails exactly at an age still belongs to its row.
    """

    rows: tuple[Row, ...] = DEFAULT_TABLE
    since: str = "due"
    """The start of the age: ``due``, when the job was first due, or ``created``, when it was added."""

    def __post_init__(self) -> None:
        if self.since not in ("due", "created"):
            raise InvalidOption(f"since={as_code(self.since)} of a retry policy: pass 'due' or 'created'")
        if not self.rows:
            raise InvalidOption("a time table of a retry policy has no rows: pass at least one, such as {'1h': '5m'}")
        last = 0.0
        for age, pause in self.rows:
            check_seconds("age", age)
            check_seconds("pause", pause)
            if age <= last:
                raise InvalidOption(f"age={age:g} of a retry policy: ages must grow from row to row, the first from 0")
            if not 0 < pause <= age:
                raise InvalidOption(
                    f"pause={pause:g} of a retry policy: pass more than 0, and no more than the age {age:g}"
                )
            last = age

    def decide(self, situation: Situation) -> Decision:
        """Return the pause of the first row that the job's age is in."""
        start = self._start(situation)
        for age, pause in self.rows:
            if within(start, age, situation.now):
                return RetryIn(after=pause)
        return GiveUp()

    def is_last(self, situation: Situation) -> bool:
        """Return whether the job is older than the last row."""
        return not within(self._start(situation), self.rows[-1][0], situation.now)

    def document(self) -> dict[str, Any]:
        """Return the policy as plain JSON values."""
        return {"policy": "table", "rows": [list(row) for row in self.rows], "since": self.since}

    def __str__(self) -> str:
        """Return the policy in words."""
        rows = ", ".join(f"every {pause:g} s up to an age of {age:g} s" for age, pause in self.rows)
        return f"retry {rows}"

    def _start(self, situation: Situation) -> datetime:
        return situation.due_at if self.since == "due" else situation.created_at
