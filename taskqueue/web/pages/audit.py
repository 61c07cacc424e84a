"""The audit: who did what to what, when and from where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taskqueue.web.view import View

PAGE = 100


def audit(view: View) -> Mapping[str, Any]:
    """Return a page of entries, the newest first."""
    before = view.query.get("before") or None
    entries = view.scheduler.audit(PAGE + 1, before)
    return {
        "entries": list(map(view.masking.entry, entries[:PAGE])),
        "next": entries[PAGE - 1].cursor if len(entries) > PAGE else "",
        "is_first": before is None,
    }
