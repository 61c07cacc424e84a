"""The text of a stack: what each thread and task of a run executes, as files, lines and functions, never values."""

from __future__ import annotations

import os
import re

MOST_BYTES = 60 * 1024
"""Bytes of a stack that is asked for."""

KEPT_BYTES = 8 * 1024
"""Bytes of a stack that is kept with an attempt."""

REQUEST, ANSWER = "stack:", "stack answer:"
"""The prefixes of the leases by which a stack is asked for and returned."""

LONGEST_NAME = 100
"""Characters of the name of a thread or a task, which a job may choose."""

MAIN = "Main thread"
_HEAD_END = " (most recent call first):"
_OF_JOB = " of job "
_TASK_OF_JOB = re.compile(rf"Task.*{_OF_JOB}(?P<job>[0-9a-f]{{24}}){re.escape(_HEAD_END)}")
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')
_LIBRARY = re.compile(r"^<|/lib(64)?/(python|pypy)\d[^/]*/|/(site|dist)-packages/")
_PACKAGE = os.path.dirname(os.path.dirname(__file__))
_WORKER = (f'"{_PACKAGE}/daemon/worker/', f'"{_PACKAGE}/execution/')
_FIRST_OF_WORKER = (f'"{_PACKAGE}/execution/attempt.py"', f'"{_PACKAGE}/daemon/worker/')


def head(name: str) -> str:
    """Return the line above the frames of a thread or a task."""
    return f"{_name(name)}{_HEAD_END}"


def task_head(name: str, job: str = "") -> str:
    """Return the line above the frames of a task, which may belong to one job among others."""
    shown = _name(name)
    named = shown if shown.startswith("Task") else f"Task {shown}"
    return f"{named}{_OF_JOB}{job}{_HEAD_END}" if job else f"{named}{_HEAD_END}"


def of_job(text: str, job: str) -> str:
    """Return the text without the tasks of other jobs."""
    lines: list[str] = []
    is_others = False
    for line in text.split("\n"):
        if line.endswith(_HEAD_END):
            head_of_task = _TASK_OF_JOB.fullmatch(line)
            is_others = head_of_task is not None and head_of_task["job"] != job
        if not is_others:
            lines.append(line)
    return "\n".join(lines)


def frame(file: str, line: int | None, function: str) -> str:
    """Return the line of one frame."""
    return f'  File "{_printable(file)}", line {line or 0} in {_printable(function)}'


def without_worker(frames: list[str]) -> list[str]:
    """Return the frames, the latest first, without frames of the worker that has called the job."""
    first = (next((n for n, written in enumerate(frames) if mark in written), None) for mark in _FIRST_OF_WORKER)
    place = next((n for n in first if n is not None), None)
    if place is None:
        return frames
    while place and any(folder in frames[place - 1] for folder in _WORKER):
        place -= 1
    return frames[:place] or frames[:1]


def shortened(text: str, most: int) -> str:
    """Return the text, or its first lines within ``limit`` bytes."""
    encoded = text.encode()
    if len(encoded) <= most:
        return text
    lines = encoded[: most - 40].rpartition(b"\n")[0].decode(errors="replace")
    return f"{lines}\n… {text.count(chr(10)) - lines.count(chr(10))} more lines"


def latest(text: str, job: str) -> str:
    """Return in words where a job of this import path was, by its latest line outside of libraries; empty for none.

    The first thread or task that executes such a line counts. The code that this line called is named as well.
    """
    frames = [[*_FRAME.finditer(part)] for part in text.split(_HEAD_END)]
    module = f"/{job.partition(':')[0].replace('.', '/')}"
    own_files = (f"{module}.py", f"{module}/__init__.py")
    for thread in frames:
        files = [(frame_match, frame_match["file"]) for frame_match in thread]
        own = next(
            (frame_match for frame_match, file in files if file.endswith(own_files) or not is_library(file)), None
        )
        if own is not None:
            called = "" if own is thread[0] else f" (in a call that had reached {_in_words(thread[0])})"
            return f"{_in_words(own)}{called}"
    return next((_in_words(thread[0]) for thread in frames if thread), "")


def is_library(file: str) -> bool:
    """Return whether the file of a frame is one of Python, of an installed package, or of this package."""
    return _LIBRARY.search(file) is not None or file.startswith(f"{_PACKAGE}/")


def _in_words(found: re.Match[str]) -> str:
    return f"{found['file']}, line {found['line']}, in {found['function']}"


def _name(name: str) -> str:
    return _printable(name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}…")


def _printable(name: str) -> str:
    return name if name.isprintable() else ascii(name)[1:-1]
