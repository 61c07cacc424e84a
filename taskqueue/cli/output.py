"""Prints the output of commands: text made safe for a terminal, and the JSON of ``--json``.

It is the only way to stdout and stderr for text from jobs and users. The shapes of the JSON are those of
``taskqueue.scheduler.json_shapes``, which are also sent over HTTP.
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click

from taskqueue.model.shown_text import in_json, logged, shown


def json_option(writes: str, more: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the decorator for the option ``--json``, whose help says what it writes."""
    return click.option("--json", "as_json", is_flag=True, help=f"Write {writes} for programs{more}.")


def write(document: Any) -> None:
    """Print one document."""
    json_line(json_text(document, 2))


def write_all(documents: Iterable[Mapping[str, Any]]) -> None:
    """Print a list of documents, each on a line of its own."""
    json_line("[", nl=False)
    separator = "\n"
    for document in documents:
        json_line(separator + json_text(document), nl=False)
        separator = ",\n"
    json_line("\n]")


def answer(document: Mapping[str, Any], text: str, *, as_json: bool) -> None:
    """Print what a command has done: the document with ``--json``, or else a line for people."""
    if as_json:
        write(document)
    else:
        line(text)


def answer_each(documents: Iterable[Mapping[str, Any]], texts: Iterable[str], *, as_json: bool) -> None:
    """Print what a command has done to several things: with ``--json`` a list of documents, or else a line for each."""
    if as_json:
        write_all(documents)
        return
    for text in texts:
        line(text)


_NOT_ASCII = re.compile("[^\x00-\x7f]")


def accept_every_character() -> None:
    """Make the standard streams of this process and its children escape characters that their encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def encodable(text: str) -> str:
    """Return the text as the output shows it: characters that its encoding lacks are escaped."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text if encoding == "utf-8" else text.encode(encoding, "backslashreplace").decode(encoding)


def line(text: str, *, err: bool = False) -> None:
    """Print one line for people."""
    # Without a file, click would write UTF-8 even if the encoding is ASCII.
    click.echo(logged(text), file=sys.stderr if err else sys.stdout)


def lines(text: str) -> None:
    """Print text that may have several lines."""
    click.echo(shown(text), file=sys.stdout)


def styled(text: str, *, nl: bool = True) -> None:
    """Print text of ``terminal``, which has our colours and whose words are already clean."""
    click.echo(text, file=sys.stdout, nl=nl)


def json_text(document: Any, indent: int | None = None) -> str:
    """Return the document as JSON that a terminal can also show, with the same meaning."""
    return in_json(json.dumps(document, ensure_ascii=False, indent=indent, default=str))


def json_line(text: str, *, nl: bool = True) -> None:
    """Print JSON, or a part of it, from ``json_text``; it means the same in every encoding."""
    click.echo(text if encodable(text) == text else ascii_json(text), file=sys.stdout, nl=nl)


def ascii_json(text: str) -> str:
    """Return the same JSON in ASCII."""
    return _NOT_ASCII.sub(lambda match: json.dumps(match[0])[1:-1], text)
