"""Where log lines go and how they are written: to stderr as text or JSON, or as a file of the user's says."""

from __future__ import annotations

import json
import logging
import logging.config
import sys
import textwrap
import threading
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from taskqueue.cli import config_file
from taskqueue.daemon.runtime import child_setup
from taskqueue.errors import ConfigError
from taskqueue.model.serializer import in_json, logged, shown

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")


class JsonFormatter(logging.Formatter):
    """Write a record as one line of JSON: time (UTC), level, logger, pid, message and, with an error, its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return in_json(json.dumps(line, ensure_ascii=False))


class TextFormatter(logging.Formatter):
    """Write a record as one line of text, and the traceback of an error indented below it.

    Whatever a message or an error holds, nothing else begins a line, so that no line can be forged.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the lines of the traceback."""
        line = f"{self.formatTime(record)} {record.levelname} {record.process} {record.getMessage()}"
        if not record.exc_info:
            return logged(line)
        trace = shown(self.formatException(record.exc_info))
        return f"{logged(line)}\n{textwrap.indent(trace, '    ', lambda _: True)}"


def configure(level: str, form: str, file: Path | None = None) -> set[int]:
    """Send what is logged at ``level`` or above to stderr, in this process and those forked from it.

    With ``file`` that alone says what is logged and where. Return the descriptors that were opened for it, which forked
    processes have to keep. Raises ``ConfigError``.
    """
    if file is not None:
        return _obey(file)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # The driver tells every heartbeat and command at debug; what concerns jobs would be lost among them.
    logging.getLogger("pymongo").setLevel(max(logging.getLevelName(level.upper()), logging.INFO))
    return set()


def _obey(file: Path) -> set[int]:
    """Configure logging as the file says, in the terms of ``logging.config.dictConfig``."""
    # Without word of it the loggers that exist stay on: those of taskqueue do already.
    settings = {"version": 1, "disable_existing_loggers": False, **_table(file)}
    before, threads = child_setup.descriptors(), set(threading.enumerate())
    try:
        logging.config.dictConfig(settings)
    except Exception as error:  # the code of a handler may raise any exception
        cause = "" if error.__cause__ is None else f" ({type(error.__cause__).__name__}: {error.__cause__})"
        raise ConfigError(
            f"{file} is no configuration of logging: {error}{cause}: see logging.config.dictConfig"
        ) from None
    started = [thread.name for thread in threading.enumerate() if thread not in threads]
    if started:
        problem = f"{file}: a handler has started threads ({', '.join(started)}), beside which no worker can be forked"
        raise ConfigError(f"{problem}: use one that writes by itself")
    return child_setup.descriptors() - before


def _table(file: Path) -> Mapping[str, Any]:
    if file.suffix != ".json":
        return config_file.table(file, "--log-config")
    try:
        found = json.loads(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"{file} cannot be read ({error.strerror}): pass a file to --log-config") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{file} is no JSON object: write what logging.config.dictConfig takes")
    return found
