"""Finds in a setting what belongs to the file that it was written in, and what a shell would have taken off."""

from __future__ import annotations

import re

_COMMENT = re.compile(r"\s#")


def flaw_of(value: str) -> str:
    """Return what is wrong with the value and the way out, as a part of a sentence; empty if nothing is."""
    if value != value.strip():
        return "begins or ends with a blank: remove it"
    if value[:1] in ("'", '"') or value[-1:] in ("'", '"'):
        return "begins or ends with a quote: remove it (files of Docker and Kubernetes have no quotes)"
    if _COMMENT.search(value):
        return "has a comment, which is a part of it here: remove it"
    return ""
