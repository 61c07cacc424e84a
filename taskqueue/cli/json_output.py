"""Prints the JSON of ``--json`` for programs.

The shapes are those of ``taskqueue.scheduler.json_shapes``, which are also sent over HTTP.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from taskqueue.cli import output


def write(document: Mapping[str, Any]) -> None:
    """Print one document."""
    output.json_line(output.json_text(document, 2))


def write_all(documents: Iterable[Mapping[str, Any]]) -> None:
    """Print a list of documents, each on a line of its own."""
    output.json_line("[", nl=False)
    separator = "\n"
    for document in documents:
        output.json_line(separator + output.json_text(document), nl=False)
        separator = ",\n"
    output.json_line("\n]")
