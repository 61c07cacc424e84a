"""How log lines are written to stderr: text for people, one JSON object a line for programs."""

from __future__ import annotations

import json
import logging
import sys
import textwrap
from datetime import datetime, timezone

from taskqueue.model.text import in_json, logged, shown

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


def configure(level: str, form: str) -> None:
    """Send what is logged at ``level`` or above to stderr, in this process and those forked from it."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # The driver tells every heartbeat and command at debug; what concerns jobs would be lost among them.
    logging.getLogger("pymongo").setLevel(max(logging.getLevelName(level.upper()), logging.INFO))
