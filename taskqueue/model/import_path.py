"""The name under which the running script can be imported, so that what it defines has one name everywhere."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path


@cache
def main_module() -> str | None:
    """Return the name under which the running script can be imported, or None where it cannot."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name != "__main__":
        return str(spec.name)
    file = getattr(main, "__file__", None)
    if file is None:
        return None
    path = Path(file)
    return path.stem if path.suffix == ".py" and path.stem.isidentifier() and path.stem != "__main__" else None
