"""An application of many small objects, to be preloaded: as many bytes as the variable ``BALLAST`` says, or 100 MB.

In the manager it collects garbage at SIGUSR1, as an application may at any time, and then makes the file that
``BALLAST_TOLD`` names.
"""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path
from types import FrameType

import psutil

from taskqueue import Job

SIZE = int(os.environ.get("BALLAST", "100_000_000"))


class Collect(Job):
    """Has the garbage of its worker collected."""

    def start(self) -> None:
        """Look at everything that collections look at."""
        gc.collect()


class Read(Job):
    """Reads what was preloaded."""

    def start(self) -> int:
        """Touch every customer."""
        return sum(len(str(customer["name"])) for customer in CUSTOMERS)


def _filled() -> list[dict[str, object]]:
    """Return customers: dictionaries, lists and text, made one by one as an application makes them."""
    process = psutil.Process()
    before = process.memory_info().rss
    customers: list[dict[str, object]] = []
    while process.memory_info().rss < before + SIZE:
        customers += map(_customer, range(len(customers), len(customers) + 1000))
    return customers


def _customer(number: int) -> dict[str, object]:
    return {"name": f"customer {number}", "orders": [number, f"{number}a"], "number": number}


def _collect(signum: int, frame: FrameType | None) -> None:
    gc.collect()
    Path(os.environ["BALLAST_TOLD"]).touch()


CUSTOMERS = _filled()
if "BALLAST_TOLD" in os.environ:
    signal.signal(signal.SIGUSR1, _collect)
