"""Finds in a setting what belongs to the file that it was written in, and what a shell would have taken off."""

from __future__ import annotations

import re

_COMMENT = re.compile(r"\s#")


def flaw_of(value: str) -> str:
    """Return the error in the value and its correction as part of a sentence; empty if the value is valid."""
    if value != value.strip():
        return "begins or ends with a space: remove it"
    if value[:1] in ("'", '"') or value[-1:] in ("'", '"'):
        return "begins or ends with a quote: remove it (files of Docker and Kubernetes have no quotes)"
    if _COMMENT.search(value):
        return "has a comment, which is a part of it here: remove it"
    return ""
