"""The shapes of what the commands answer to programs, on a store with a job in every state."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from taskqueue.cli import main
from taskqueue.store.open import open_store
from tests.cli import records


def answers(folder: Path) -> Mapping[str, Any]:
    """Return the shape of the document of each command, by the command line."""
    url = f"sqlite://{folder}/jobs.db"
    added = records.in_every_status()
    with closing(open_store(url)) as store:
        store.add(list(added.values()))
    ids = {name: str(record.id) for name, record in added.items()}
    return {shown: _answer(url, line) for shown, line in _lines(ids, folder)}


def _lines(ids: Mapping[str, str], folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each command line as it is recorded, and as it is called."""
    for text in (
        "list", "stats", "events", "nodes", "nodes --leader", "doctor", "analytics",
        "class shop.mail:MailJob", "queue mail", "config", "migrate",
        "show {failed}", "why {waiting}", "why {running}", "why {failed}", "logs {failed}", "wait {failed}",
        "update {waiting} --priority 5", "cancel {waiting}", "recover {failed}", "add shop.mail:MailJob",
        "pause mail", "pause --all", "limit mail 5", "limit", "stats", "resume mail", "drain web-1", "undrain web-1",
        "schedule add night shop.mail:MailJob --cron @daily", "schedule list", "schedule show night",
        "schedule pause night", "schedule resume night", "schedule trigger night", "schedule preview night",
        "schedule remove night", "audit", "purge --done --older 1d", "backup {folder}/copy.db", "flush --yes",
    ):  # fmt: skip
        yield text.format_map(_Named()), [*text.format(folder=folder, **ids).split(), "--json"]


class _Named(dict[str, str]):
    """Gives each placeholder its own name."""

    def __missing__(self, name: str) -> str:
        return name.upper()


def _answer(url: str, line: list[str]) -> Any:
    """Return the exit code and the shape of the document, or documents if the command writes one per line."""
    written, complaint = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(written), contextlib.redirect_stderr(complaint):
        code = main.main(["--url", url, *line])
    text = written.getvalue()
    try:
        document = json.loads(text) if text else None
    except ValueError:
        document = [json.loads(written_line) for written_line in text.splitlines()]
    assert text or not complaint.getvalue(), f"{line}: {complaint.getvalue()}"
    return {"exit": int(code), "answer": _shape(document)}


def _shape(value: Any) -> Any:
    """Return the document with its types in place of values; all members of a list are described by one."""
    if isinstance(value, Mapping):
        return {name: _shape(below) for name, below in sorted(value.items())}
    if isinstance(value, list):
        return [_merged([_shape(member) for member in value])] if value else []
    return "null" if value is None else type(value).__name__


def _merged(shapes: Iterable[Any]) -> Any:
    """Return one shape for all: objects have the names of any, other types are listed."""
    shapes = list(shapes)
    if all(isinstance(shape, Mapping) for shape in shapes):
        names = sorted({name for shape in shapes for name in shape})
        return {name: _merged([shape[name] for shape in shapes if name in shape]) for name in names}
    kinds = sorted({json.dumps(shape, sort_keys=True) for shape in shapes})
    return json.loads(kinds[0]) if len(kinds) == 1 else " or ".join(kinds).replace('"', "")
