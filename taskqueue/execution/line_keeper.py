"""Keeps the log lines of a run with its job: a handler that hands each line to the run it belongs to."""

from __future__ import annotations

import io
import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from taskqueue.model.log_fields import CURRENT, RunFields, RunRecord
from taskqueue.model.log_lines import LINE_LIMIT
from taskqueue.store.redaction import concealed_in

_FORMATTER = logging.Formatter()


class LineKeeper(logging.Handler):
    """Hands the lines of runs to them, in addition to all other logging."""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the line with its job, if it belongs to one."""
        _print_if_unseen(record)
        fields = record.run if isinstance(record, RunRecord) else CURRENT.get()
        if fields is None or fields.keep is None:
            return
        try:
            fields.keep(record.created, record.levelname.lower(), record.name, _text(record))
        except Exception:  # as other handlers do
            self.handleError(record)


def _print_if_unseen(record: logging.LogRecord) -> None:
    """Print a warning as Python does where logging is not configured: this handler must not change that."""
    if len(logging.root.handlers) > 1 or logging.lastResort is None or record.levelno < logging.lastResort.level:
        return
    logger: logging.Logger | None = logging.getLogger(record.name)
    while logger is not None:
        if any(handler is not KEEPER for handler in logger.handlers):
            return
        logger = logger.parent
    logging.lastResort.handle(record)


def _text(record: logging.LogRecord) -> str:
    text = record.getMessage()
    if record.exc_info and not record.exc_text:
        record.exc_text = _FORMATTER.formatException(record.exc_info)
    if record.exc_text:
        text = f"{text}\n{record.exc_text}"
    return concealed_in(text)


KEEPER = LineKeeper()
_lock = threading.Lock()
_users = 0


def attach() -> None:
    """Have lines kept in this process, even if a module of jobs has configured logging again."""
    if KEEPER not in logging.root.handlers:
        logging.root.addHandler(KEEPER)


@contextmanager
def attached() -> Iterator[None]:
    """Keep lines during the block; before and after it, logging in the application is unchanged."""
    global _users
    with _lock:
        _users += 1
        is_first = _users == 1 and KEEPER not in logging.root.handlers
        attach()
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users and is_first:
                logging.root.removeHandler(KEEPER)


class CapturedStream(io.TextIOBase):
    """Passes text on to a stream, and keeps its lines with the run that wrote them."""

    def __init__(self, stream: Any, name: str) -> None:
        self._stream = stream
        self._name = name

    def write(self, text: str) -> int:
        """Write the text; keep each line that it ends."""
        written: int = self._stream.write(text)
        fields = CURRENT.get()
        if fields is None or fields.keep is None:
            return written
        *lines, rest = f"{_begun(fields).pop(self._name, '')}{text}".split("\n")
        for line in lines:
            _keep_output(fields, self._name, line)
        if len(rest) > LINE_LIMIT:
            _keep_output(fields, self._name, rest)
        elif rest:
            _begun(fields)[self._name] = rest
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def flush(self) -> None:
        """Flush the stream."""
        self._stream.flush()

    def fileno(self) -> int:
        """Return the descriptor of the stream."""
        number: int = self._stream.fileno()
        return number

    def isatty(self) -> bool:
        """Return whether the stream is a terminal."""
        return bool(self._stream.isatty())


def capture_output() -> None:
    """Keep the printed lines of runs of this process from now on, also of threads and libraries."""
    sys.stdout = CapturedStream(sys.stdout, "stdout")
    sys.stderr = CapturedStream(sys.stderr, "stderr")


def keep_begun_output(fields: RunFields) -> None:
    """Keep the output that the run has not ended with a newline."""
    for name, text in (fields.unfinished or {}).items():
        _keep_output(fields, name, text)
    fields.unfinished = None


def _begun(fields: RunFields) -> dict[str, str]:
    if fields.unfinished is None:
        fields.unfinished = {}
    return fields.unfinished


def _keep_output(fields: RunFields, stream: str, line: str) -> None:
    if fields.keep is not None and line:
        fields.keep(time.time(), stream, stream, concealed_in(line))
