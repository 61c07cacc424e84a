"""The jobs of the quickstart: index one folder of the standard library, and write the whole index into one file."""

from __future__ import annotations

import codecs
import csv
import hashlib
import io
import time
import tokenize
from pathlib import Path
from typing import Any

from taskqueue import Interrupted, Job

CHECKPOINT_EVERY = 10
"""Files after which a job keeps what it has found, so that the next attempt goes on there if this one is killed."""


class IndexFolder(Job):
    """Examine every file of one folder; the result is one entry for each."""

    def start(self) -> dict[str, Any]:
        folder = Path(self.data["library"], self.data["folder"])
        names = file_names(folder)
        entries = self.state or []  # what an earlier attempt of this job has kept
        found_before = len(entries)
        try:
            for name in names[found_before:]:
                entries.append(examine(folder / name))
                self.progress(100 * len(entries) / len(names), name)
                if len(entries) % CHECKPOINT_EVERY == 0:
                    self.checkpoint(entries)
                time.sleep(self.data["pause"])
        except Interrupted:  # the node stops: keep the last entries too, then let go
            self.checkpoint(entries)
            raise
        return {"entries": entries, "found_before": found_before}


class WriteIndex(Job):
    """Write the entries of all folders into one CSV file; the result is their number."""

    options = {"retry": 5, "retry_interval": 1}

    def start(self) -> int:
        written = 0
        with open(self.data["file"], "w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(["folder", "file", "bytes", "sha256", "lines", "encoding", "problem"])
            for process in self.scheduler.get_jobs({"job": "library:IndexFolder"}):
                for entry in process.result["entries"]:
                    rows.writerow([process.data["folder"], *entry.values()])
                    written += 1
        return written


def named(folder: str) -> str:
    """Return how people call a folder, which is given as its path below the library."""
    return "the top folder" if folder == "." else folder


def file_names(folder: Path) -> list[str]:
    """Return the names of the files of a folder in an order that is always the same."""
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def examine(path: Path) -> dict[str, Any]:
    """Return name, bytes, SHA-256, lines and encoding of a file, and what is wrong with its encoding, if anything."""
    content = path.read_bytes()
    encoding, problem = encoding_of(path, content)
    return {
        "file": path.name,
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "lines": None if encoding is None else len(content.splitlines()),
        "encoding": encoding,
        "problem": problem,
    }


def encoding_of(path: Path, content: bytes) -> tuple[str | None, str]:
    """Return the encoding that a text should have, None for a binary file, and why it cannot be read in it.

    A file with a NUL near its start is binary, as for git. Python files may declare their encoding (PEP 263); any other
    text should be UTF-8.
    """
    if b"\0" in content[:8000]:
        return None, ""
    encoding = "utf-8"
    try:
        if path.suffix == ".py":
            declared, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
            encoding = codecs.lookup(declared).name
        content.decode(encoding)
    except SyntaxError as error:
        return encoding, str(error)
    except UnicodeDecodeError as error:
        return encoding, f"not {encoding}: byte {content[error.start]:#04x} at {error.start:,}"
    return encoding, ""
