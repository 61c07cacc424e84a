"""Forks of a test process, which has threads: those of a MongoDB client, of pytest-xdist and of the test itself."""

from __future__ import annotations

import os
import warnings


def fork() -> int:
    """Fork as ``os.fork`` does. Python warns from 3.12 on if there are threads, which is what these tests are about."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        return os.fork()
