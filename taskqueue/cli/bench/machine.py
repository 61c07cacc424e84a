"""On what it was measured: the hardware and what runs on it."""

from __future__ import annotations

import os
import platform
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taskqueue.daemon.node.status import version


def hardware() -> Mapping[str, Any]:
    """Return what the figures depend on; the load is that of the last minute, with everything else that runs."""
    return {
        "processor": _processor(Path("/proc/cpuinfo").read_text()),
        "cores": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "taskqueue": version(),
        "load": round(os.getloadavg()[0], 2),
    }


def _processor(cpuinfo: str) -> str:
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
