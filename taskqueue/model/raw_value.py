"""Finds quotes, spaces and comments in a setting that a shell would have removed."""

from __future__ import annotations

import re

_COMMENT = re.compile(r"\s#")


def flaw_of(value: str) -> str:
    """Return the error in the value and its correction as part of a sentence; empty if the value is valid."""
    if value != value.strip():
        return "begins or ends with a space: remove it"
    if value[:1] in ("'", '"') or value[-1:] in ("'", '"'):
        return "begins or ends with a quote: remove it (Docker and Kubernetes do not strip quotes)"
    if _COMMENT.search(value):
        return "contains a comment, which would become part of the value: remove it"
    return ""
