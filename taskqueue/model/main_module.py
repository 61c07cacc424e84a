"""Finds the import name of the running script, so that its definitions have one name in every process.

Conditions and retry policies need it, and `job_path` imports jobs, which have both.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path


@cache
def main_module() -> str | None:
    """Return the import name of the running script, None if it has none."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name != "__main__":
        return str(spec.name)
    file = getattr(main, "__file__", None)
    if file is None:
        return None
    path = Path(file)
    return path.stem if path.suffix == ".py" and path.stem.isidentifier() and path.stem != "__main__" else None
