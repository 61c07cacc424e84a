"""Keeps the log lines of a run with its job: a handler that hands each line to the run it belongs to."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from taskqueue.model.log_fields import CURRENT, RunFields, RunRecord
from taskqueue.model.log_lines import LINE_LIMIT
from taskqueue.store.redaction import concealed_in

_FORMATTER = logging.Formatter()


class LineKeeper(logging.Handler):
    """Passes each line to the run that wrote it, in addition to all other logging."""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the line with its job, if it belongs to one."""
        _print_if_unseen(record)
        fields = record.run if isinstance(record, RunRecord) else CURRENT.get()
        if fields is None or fields.keep is None:
            return
        try:
            fields.keep(record.created, record.levelname.lower(), record.name, _text(record))
        except Exception:  # just as other handlers do
            self.handleError(record)


def _print_if_unseen(record: logging.LogRecord) -> None:
    """Print a warning as Python does when logging is not configured: this handler must not change that."""
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
    return concealed_in(without_escapes(text))


KEEPER = LineKeeper()
_lock = threading.Lock()
_users = 0
_is_added = False
"""Whether the first of the present users has added the handler: the last one removes it then."""


def attach() -> None:
    """Keep lines in this process, even if a job's module has reconfigured logging."""
    if KEEPER not in logging.root.handlers:
        logging.root.addHandler(KEEPER)


@contextmanager
def attached() -> Iterator[None]:
    """Keep lines during the block; before and after it, logging in the application is unchanged."""
    global _users, _is_added
    with _lock:
        if not _users:
            _is_added = KEEPER not in logging.root.handlers
        _users += 1
        attach()
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users and _is_added:
                logging.root.removeHandler(KEEPER)


class CapturedStream(io.TextIOBase):
    """Passes text on to a stream, and keeps its lines with the run that wrote them."""

    def __init__(self, stream: Any, name: str, *, keeps_all: bool = True) -> None:
        """Create it; without ``keeps_all`` it keeps only what structlog prints."""
        self._stream = stream
        self._name = name
        self._keeps_all = keeps_all
        self.beneath = self if keeps_all else stream
        """What a job finds that does not use structlog."""

    def write(self, text: str) -> int:
        """Write the text, and keep each line that it completes."""
        written: int = self._stream.write(text)
        self.keep(text)
        return written

    @property
    def encoding(self) -> str:  # type: ignore[override]  # io.TextIOBase has no encoding of its own
        """Return the encoding of the stream."""
        encoding: str = self._stream.encoding
        return encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """Return what the stream does with characters that it cannot encode."""
        errors: str | None = self._stream.errors
        return errors

    def writable(self) -> bool:
        """Return True."""
        return True

    @property
    def buffer(self) -> Any:
        """Return the underlying stream of bytes, to which structlog may write as well."""
        return _CapturedBytes(self._stream.buffer, self.keep)

    def keep(self, text: str) -> None:
        """Keep each line that the text completes; a line of structlog with the traceback that follows in the text."""
        fields = CURRENT.get()
        if fields is None or fields.keep is None:
            return
        begun = _begun(fields)
        text = f"{begun.pop(self._name, '')}{text}"
        is_of_structlog = "structlog" in sys.modules and parsed(text.partition("\n")[0]) is not None
        if is_of_structlog and not text.endswith("\n") and len(text) <= LINE_LIMIT:
            begun[self._name] = text
        elif is_of_structlog:
            for piece in _pieces(text):
                _keep_output(fields, self._name, piece)
        elif self._keeps_all:
            *lines, rest = text.split("\n")
            for line in lines:
                _keep_output(fields, self._name, line)
            if len(rest) > LINE_LIMIT:
                _keep_output(fields, self._name, rest)
            elif rest:
                begun[self._name] = rest

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
    """From now on keep what runs in this process print, including their threads and libraries."""
    sys.stdout = CapturedStream(sys.stdout, "stdout")
    sys.stderr = CapturedStream(sys.stderr, "stderr")


def capture_structlog() -> None:
    """From now on keep what structlog prints, if it prints to standard output, as it does by default."""
    if not isinstance(sys.stdout, CapturedStream):
        sys.stdout = CapturedStream(sys.stdout, "stdout", keeps_all=False)


class _CapturedBytes:
    """Passes bytes on to a stream, and keeps them as text."""

    def __init__(self, stream: Any, keep: Callable[[str], None]) -> None:
        self._stream = stream
        self._keep = keep

    def write(self, data: Any) -> int:
        written: int = self._stream.write(data)
        self._keep(bytes(data).decode(errors="replace"))
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _pieces(text: str) -> Iterator[str]:
    """Yield each line of structlog together with the lines after it that are not its own."""
    piece: list[str] = []
    for line in text.removesuffix("\n").split("\n"):
        if piece and parsed(line) is not None:
            yield "\n".join(piece)
            piece = []
        piece.append(line)
    yield "\n".join(piece)


def keep_begun_output(fields: RunFields) -> None:
    """Keep the run's last output if it has no newline at its end."""
    for name, text in (fields.unfinished or {}).items():
        _keep_output(fields, name, text)
    fields.unfinished = None


def _begun(fields: RunFields) -> dict[str, str]:
    if fields.unfinished is None:
        fields.unfinished = {}
    return fields.unfinished


def _keep_output(fields: RunFields, stream: str, line: str) -> None:
    if fields.keep is None or not line:
        return
    of_structlog = parsed(line) if "structlog" in sys.modules else None
    level, logger, text = of_structlog or (stream, stream, without_escapes(line))
    fields.keep(time.time(), level, logger, concealed_in(text))


LEVELS = frozenset(("debug", "info", "warning", "error", "critical"))

_ALIASES = {"warn": "warning", "exception": "error", "fatal": "critical"}
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
"""The escape sequences of terminals: colours and cursor (CSI), titles and links (OSC), and others of one letter."""

_CONSOLE = re.compile(
    r"(?:\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)? +)?"
    r"\[(?P<level>[a-z]{4,9}) *\] +(?P<rest>.*)",
    re.DOTALL,
)
_PADDING = re.compile(r" {3,}(?=\S)")
"""The text between an event and its values on a console."""


class ParsedLine(NamedTuple):
    """A line of structlog, without its time."""

    level: str
    logger: str
    message: str


def without_escapes(text: str) -> str:
    """Return the text without the escape sequences of terminals."""
    return _ESCAPES.sub("", text) if "\x1b" in text else text


def parsed(text: str) -> ParsedLine | None:
    """Return the event in a printed text, with any traceback below its line; None if structlog did not print it."""
    text = without_escapes(text)
    if text[:1] == "{":
        return _of_json(text)
    match = _CONSOLE.fullmatch(text)
    level = None if match is None else _level(match["level"])
    if match is None or level is None:
        return None
    return ParsedLine(level, "structlog", _PADDING.sub("  ", match["rest"].rstrip(), count=1))


def _of_json(text: str) -> ParsedLine | None:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    level = _level(values.pop("level", None))
    event = values.pop("event", None)
    if level is None or not isinstance(event, str):
        return None
    values.pop("timestamp", None)
    logger, trace = values.pop("logger", None), values.pop("exception", None)
    words = [event, *(f"{name}={_shown(value)}" for name, value in values.items())]
    message = " ".join(words) + (f"\n{trace}" if isinstance(trace, str) else "")
    return ParsedLine(level, logger if isinstance(logger, str) else "structlog", message)


def _level(name: Any) -> str | None:
    """Return the level as ``logging`` names it; None if it is not a level."""
    if not isinstance(name, str):
        return None
    level = _ALIASES.get(name.lower(), name.lower())
    return level if level in LEVELS else None


def _shown(value: Any) -> str:
    """Return a value as a console of structlog shows it: a text without spaces without quotes."""
    return value if isinstance(value, str) and value and " " not in value else json.dumps(value, ensure_ascii=False)
