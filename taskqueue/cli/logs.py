"""How log lines are written to stderr: text for people, one JSON object a line for programs."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timezone

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
        return json.dumps(line, ensure_ascii=False)


def configure(level: str, form: str) -> None:
    """Send what is logged at ``level`` or above to stderr, in this process and those forked from it."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)s %(process)d %(message)s")
    handler.setFormatter(JsonFormatter() if form == "json" else text)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # The driver tells every heartbeat and command at debug; what concerns jobs would be lost among them.
    logging.getLogger("pymongo").setLevel(max(logging.getLevelName(level.upper()), logging.INFO))
