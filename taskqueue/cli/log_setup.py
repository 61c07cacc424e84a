"""Configures logging: to stderr as text or JSON, or as the user's ``--log-config`` file says."""

from __future__ import annotations

import contextlib
import json
import logging
import logging.config
import os
import sys
import textwrap
import threading
from collections.abc import Mapping
from datetime import datetime, timezone, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from taskqueue.cli import config_file, output
from taskqueue.cli.ids import short
from taskqueue.daemon.runtime import child_setup, standard_streams
from taskqueue.errors import ConfigError
from taskqueue.model import log_fields
from taskqueue.model.log_fields import NAMES, OF_NO_RUN, RunRecord
from taskqueue.model.shown_text import in_json, logged, shown
from taskqueue.store.redaction import concealed_in

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")


_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime"}
"""The attributes of every log record; the others are fields of its run, or were passed as ``extra``."""


class JsonFormatter(logging.Formatter):
    """Write a record as one line of JSON.

    It has time (UTC), level, logger, node, pid and message; in a run ``job_id``, ``job`` (the class), ``queue``,
    ``attempt`` and, if there is any, ``meta``; with an error its ``traceback``; and all that was passed as ``extra``.
    An ``extra`` with the name of one of these fields gets a ``_`` after it. Passwords in URLs are concealed.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": concealed_in(record.getMessage()),
        }
        run = record.run if isinstance(record, RunRecord) else None
        if run is not None:
            line.update(run.items())
        line.setdefault("node", OF_NO_RUN.node)
        line["pid"] = record.process
        for name, value in vars(record).items():
            if name in _STANDARD or (name in NAMES and value == getattr(run or OF_NO_RUN, name)):
                continue
            line[f"{name}_" if name in line else name] = _plain(value)
        if not line.get("meta", True):
            del line["meta"]
        trace = _trace(self, record)
        if trace:
            line["traceback"] = trace
        return in_json(json.dumps(line, ensure_ascii=False, default=_written, skipkeys=True))


class AsciiJsonFormatter(JsonFormatter):
    """Write the same in ASCII, for an output whose encoding lacks characters."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return output.ascii_json(super().format(record))


class TextFormatter(logging.Formatter):
    """Write a record as one line for people: time, level, short id of the job and message; tracebacks are indented.

    The time has its offset and the zone of the process that made the formatter: the node, for its workers too, where a
    job may change ``TZ``. No text of a message or an error starts a line, so that no line can be forged.
    """

    def __init__(self) -> None:
        super().__init__()
        self._zone = _zone_of_process()

    _second: tuple[int, str] = (0, "")
    """The second of the last line, and its text: a node that is busy logs thousands in each (2 of 16 us)."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the lines of the traceback."""
        second = int(record.created)
        if second != self._second[0]:
            self._second = (second, datetime.fromtimestamp(second, self._zone).isoformat(" "))
        message = concealed_in(record.getMessage())
        id = getattr(record, "job_id", OF_NO_RUN.job_id)
        job = "" if id == OF_NO_RUN.job_id else f"{short(id)} "
        line = logged(f"{self._second[1]} {record.levelname:7} {job}{message}")
        trace = _trace(self, record)
        return f"{line}\n{textwrap.indent(shown(trace), '    ', lambda _: True)}" if trace else line


def _zone_of_process() -> tzinfo | None:
    """Return the current time zone of this process, whatever the environment says later."""
    name = os.environ.get("TZ")
    try:
        if name is not None:
            return ZoneInfo(name.removeprefix(":") or "UTC")
        with open("/etc/localtime", "rb") as file:
            return ZoneInfo.from_file(file)
    except (OSError, ValueError, LookupError):  # no file, or a zone without a name
        return datetime.now().astimezone().tzinfo


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return concealed_in(formatter.formatException(record.exc_info) if record.exc_info else record.exc_text or "")


def _plain(value: object) -> object:
    """Return the value of an ``extra`` in JSON form, or its text."""
    if isinstance(value, str):
        return concealed_in(value)
    if type(value) in (int, bool):
        return value
    try:
        json.dumps(value, allow_nan=False, skipkeys=True, default=_written)
    except (ValueError, TypeError, RecursionError):
        return _written(value)
    return value


def _written(value: object) -> str:
    """Return the text of an ``extra`` that JSON cannot hold."""
    try:
        return str(value)
    except Exception as error:  # its __str__ is user code
        return f"(its __str__ raised {type(error).__name__})"


def configure(level: str, form: str, file: Path | None = None) -> set[int]:
    """Send log records of ``level`` or above to stderr, in this process and those forked from it.

    With ``file``, that file alone sets levels and outputs. Return the descriptors that were opened for it, which
    forked processes have to keep. Raises ``ConfigError``.
    """
    log_fields.install()
    if file is not None:
        return _obey(file)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_json_formatter() if form == "json" else TextFormatter())
    _guard(handler)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # The driver logs every heartbeat and command at debug, which would drown the lines about jobs.
    logging.getLogger("pymongo").setLevel(max(logging.getLevelName(level.upper()), logging.INFO))
    return set()


def _guard(handler: logging.Handler) -> None:
    """Make a handler that fails, as its file cannot be opened again, end neither process nor job."""
    handle, handle_error = handler.handle, handler.handleError

    def handle_safely(record: logging.LogRecord) -> Any:
        try:
            return handle(record)
        except Exception:  # of the code of any handler, filter or formatter
            handler.handleError(record)
        return False

    def print_unwritten(record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            handle_error(record)
        elif logging.raiseExceptions:
            with contextlib.suppress(Exception):  # stderr is closed, or the record cannot be formatted
                sys.stderr.write(f"{type(handler).__name__} cannot write: {error}: {handler.format(record)}\n")

    handler.handle, handler.handleError = handle_safely, print_unwritten  # type: ignore[method-assign]


def _json_formatter() -> JsonFormatter:
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    return JsonFormatter() if encoding.lower().startswith("utf") else AsciiJsonFormatter()


def _obey(file: Path) -> set[int]:
    """Configure logging as the file says, in the terms of ``logging.config.dictConfig``."""
    # By default dictConfig would disable existing loggers, and those of taskqueue exist already.
    settings = {"version": 1, "disable_existing_loggers": False, **_table(file)}
    before, threads = child_setup.descriptors(), set(threading.enumerate())
    try:
        logging.config.dictConfig(settings)
    except Exception as error:  # the code of a handler may raise any exception
        cause = "" if error.__cause__ is None else f" ({type(error.__cause__).__name__}: {error.__cause__})"
        raise ConfigError(
            f"{file} is not a logging configuration: {error}{cause}: see logging.config.dictConfig"
        ) from None
    started = [thread.name for thread in threading.enumerate() if thread not in threads]
    if started:
        problem = f"{file}: a handler has started threads ({', '.join(started)}), so no worker can be forked"
        raise ConfigError(f"{problem}: use a handler without threads")
    loggers = (logging.root, *logging.root.manager.loggerDict.values())
    for handler in {handler for logger in loggers if isinstance(logger, logging.Logger) for handler in logger.handlers}:
        standard_streams.unblock(handler)
        _guard(handler)
    return child_setup.descriptors() - before


def _table(file: Path) -> Mapping[str, Any]:
    if file.suffix != ".json":
        return config_file.table(file, "--log-config")
    try:
        table = json.loads(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"{file} cannot be read ({error.strerror}): pass a file to --log-config") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is not JSON: {error}") from None
    if not isinstance(table, dict):
        raise ConfigError(f"{file} is not a JSON object: write what logging.config.dictConfig takes")
    return table
