"""What the quickstart has found, as tables, and why its three interesting jobs took the way they took."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from library import named

from taskqueue import Process
from taskqueue.cli import output, terminal

LARGEST = 8
"""Folders that the table names; the others are one line."""

PROBLEMS = 6
"""Files with problems that are named; the index has all."""


def show_folders(folders: Sequence[Process]) -> None:
    """Print the largest folders, the others together, and all together."""
    by_size = sorted(folders, key=lambda process: -_total([process], "bytes"))
    rows = [_row(named(process.data["folder"]), [process]) for process in by_size[:LARGEST]]
    rows.append(_row(f"{len(by_size[LARGEST:])} other folders", by_size[LARGEST:]))
    rows.append(_row("all", by_size))
    columns = [terminal.Column(head="folder", cut="end")]
    columns += [terminal.Column(head=head, side="right") for head in ("files", "lines", "KiB", "problems")]
    terminal.heading("The largest folders")
    terminal.table(columns, rows)


def show_encodings(folders: Sequence[Process]) -> None:
    """Print which encodings there are, and the files that cannot be read in the one they should have."""
    entries = [(process.data["folder"], entry) for process in folders for entry in process.result["entries"]]
    broken = [(f"{folder}/{entry['file']}", entry["problem"]) for folder, entry in entries if entry["problem"]]
    sound = [entry["encoding"] or "binary" for _, entry in entries if not entry["problem"]]
    counted = sorted(set(sound), key=lambda encoding: (-sound.count(encoding), encoding))
    terminal.heading("Encodings")
    output.lines(_wrapped(", ".join(f"{encoding} {sound.count(encoding):,}" for encoding in counted)))
    if not broken:
        output.lines("No file has a problem with its encoding.")
        return
    columns = [
        terminal.Column(head="file with a problem", cut="start"),
        terminal.Column(head="what is wrong", cut="end"),
    ]
    rows = [[path.removeprefix("./"), problem] for path, problem in sorted(broken)]
    left = len(rows[PROBLEMS:])
    terminal.table(columns, rows[:PROBLEMS], foot=f"and {left} more" if left else "")


def show_why(question: str, process: Process) -> None:
    """Print a question, the command that answers it, and its answer."""
    terminal.heading(question)
    output.lines(f"$ taskqueue why {process.id}")
    for line in process.why().splitlines():
        output.lines(_wrapped(line))


def show_kept(process: Process) -> None:
    """Print how much of the result was kept from the attempts before the last."""
    found = process.result
    kept = f"{found['found_before']} of {len(found['entries'])} files were done before the last attempt began"
    output.lines(_wrapped(f"{kept}, and kept by checkpoints."))


def _row(name: str, folders: Sequence[Process]) -> list[str]:
    problems = sum(1 for entry in _entries(folders) if entry["problem"])
    sums = (_total(folders, "bytes") // 1024, problems)
    files = sum(1 for _ in _entries(folders))
    return [name, f"{files:,}", f"{_total(folders, 'lines'):,}", f"{sums[0]:,}", f"{sums[1] or ''}"]


def _total(folders: Sequence[Process], key: str) -> int:
    return sum(entry[key] or 0 for entry in _entries(folders))


def _entries(folders: Sequence[Process]) -> Iterable[dict[str, Any]]:
    return (entry for process in folders for entry in process.result["entries"])


def _wrapped(text: str) -> str:
    width = min(terminal.width(), 100)
    return textwrap.fill(text, width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
