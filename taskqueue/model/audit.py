"""An entry of the audit: who did what to what, when and from where."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import field
from datetime import datetime, timedelta
from typing import Any

from taskqueue.model.lazy_dataclass import dataclass

KEPT_FOR = timedelta(days=400)
"""How long an entry is kept."""


@dataclass(frozen=True, kw_only=True)
class AuditEntry:
    """One action of a user."""

    at: datetime
    by: str
    """The name of the user."""
    action: str
    """What was done, in one word or two: ``cancel``, ``pause``."""
    target: str
    """What it was done to: the id of a job, the name of a queue, a node or a schedule."""
    source: str = ""
    """Where the request came from."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Details, plain JSON values."""
    cursor: str = ""
    """The cursor of this entry among the entries that ``audit`` returns: older entries are before it."""

    @property
    def concerns_job(self) -> bool:
        """Return whether the target is the id of a job."""
        return re.fullmatch("[0-9a-f]{24}", self.target) is not None

    @property
    def concerns_bulk_action(self) -> bool:
        """Return whether the target is the name of a bulk action."""
        return self.action.endswith(" bulk action")

    @property
    def details(self) -> str:
        """Return the details in one line, with the path of a class, which is long, at the end."""
        said = [(name, value) for name, value in self.about.items() if value not in (None, "", [])]
        said.sort(key=lambda one: one[0] == "job")
        return ", ".join(f"{name} {_text(value)}" for name, value in said)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
