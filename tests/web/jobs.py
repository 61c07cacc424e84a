"""Jobs of the dashboard's tests."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

from taskqueue import Job

GATE = threading.Event()
"""A running ``Slow`` ends when it is set."""

ADDABLE = tuple(f"{__name__}:{name}" for name in ("Mail", "Invoice", "Slow", "Wordy"))
"""The paths of all that may be added over HTTP."""

HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


class Mail(Job):
    """Logs one line, and ends well."""

    options: ClassVar[Any] = {"queue": "mail"}

    def start(self, data: Any = None) -> Any:
        """Return what was sent."""
        self.log.info("sent to %s", (data or {}).get("to"))
        return {"sent": 1}


class Invoice(Job):
    """Fails, with text in its error and its log that a page must not take for its own."""

    def start(self, data: Any = None) -> Any:
        """Raise an error of hostile text."""
        self.log.warning("no price in %s", HOSTILE)
        raise KeyError(f"price {HOSTILE}")


class Slow(Job):
    """Runs until it is let go."""

    def start(self, data: Any = None) -> Any:
        """Report progress, and wait."""
        self.log.info("reading rows")
        self.progress(62, "row 124,000 of 200,000")
        GATE.wait()  # a file of tests with a browser may take minutes on a busy machine


class Wordy(Job):
    """Logs, returns and raises as much as is kept."""

    def start(self, data: Any = None) -> Any:
        """Fail with a long error, after many long lines."""
        for number in range(200):
            self.log.warning("%d %s", number, '"' * 300)
        self.checkpoint(data)
        raise ValueError("<" * 50_000)
