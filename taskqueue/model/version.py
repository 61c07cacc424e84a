"""The version of the package, which setup.cfg reads too: its name on the package index is not asked for."""

from __future__ import annotations

VERSION = "0.1.0"
