"""Finds Debian's promtool, which ``bin/setup test`` has installed, or put beside the Python of the tests."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

BESIDE = Path(__file__).parents[1] / ".venv" / "bin"


def promtool() -> str:
    """Return the path of promtool; fail without it."""
    found = shutil.which("promtool", path=f"{BESIDE}{os.pathsep}{os.environ['PATH']}")
    assert found is not None, "promtool is missing: run bin/setup test"
    return found
