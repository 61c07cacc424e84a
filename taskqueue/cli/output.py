"""Prints the output of commands: the only way to stdout and stderr for text from jobs and users."""

from __future__ import annotations

import json
from typing import Any

import click

from taskqueue.model.shown_text import in_json, logged, shown


def line(text: str, *, err: bool = False) -> None:
    """Print one line for people."""
    click.echo(logged(text), err=err)


def lines(text: str) -> None:
    """Print text that may have several lines."""
    click.echo(shown(text))


def styled(text: str, *, nl: bool = True) -> None:
    """Print text of ``terminal``, which has our colours and words that are clean already."""
    click.echo(text, nl=nl)


def json_text(document: Any, indent: int | None = None) -> str:
    """Return the document as JSON that a terminal can show, too: it means the same."""
    return in_json(json.dumps(document, ensure_ascii=False, indent=indent, default=str))


def json_line(text: str, *, nl: bool = True) -> None:
    """Print JSON, or a part of it, that ``json_text`` has made."""
    click.echo(text, nl=nl)
