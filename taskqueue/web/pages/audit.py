"""The audit: who did what to what, when and from where."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from taskqueue.model.audit import AuditEntry
from taskqueue.web.view import View

PAGE = 100


def audit(view: View) -> Mapping[str, Any]:
    """Return a page of entries, the newest first."""
    before = view.query.get("before") or None
    found = view.scheduler.audit(PAGE + 1, before)
    return {
        "entries": [_shown(entry) for entry in found[:PAGE]],
        "next": found[PAGE - 1].cursor if len(found) > PAGE else "",
        "is_first": before is None,
    }


def _shown(entry: AuditEntry) -> dict[str, Any]:
    about = ", ".join(f"{name} {_text(value)}" for name, value in entry.about.items() if value not in (None, "", []))
    is_job = len(entry.target) == 24 and all(digit in "0123456789abcdef" for digit in entry.target)
    return {"entry": entry, "about": about, "link": f"/jobs/{quote(entry.target)}" if is_job else ""}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
