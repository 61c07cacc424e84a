"""Records what is seen from outside in the files beside this one: ``python -m tests.outside.record``."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.outside import surface
from tests.outside.answers import answers

REASONS = Path(__file__).parent / "changes.md"

PARTS: Mapping[str, Callable[[Path], Any]] = MappingProxyType(
    {
        "commands": lambda _: surface.commands(),
        "exit-codes": lambda _: surface.exit_codes(),
        "answers": answers,
        "openapi": lambda _: surface.openapi(),
        "metrics": surface.metrics,
        "events": lambda _: surface.events(),
        "addresses": lambda _: surface.addresses(),
        "public-names": lambda _: surface.public_names(),
    }
)
"""What is recorded of each part; an empty folder may be used for it."""


def file_of(name: str) -> Path:
    """Return the file in which a part is recorded."""
    return Path(__file__).parent / f"{name}.json"


def text(name: str, folder: Path) -> str:
    """Return the present record of a part: JSON, with a line for each entry of the two upper levels."""
    return "\n".join(_lines(json.loads(json.dumps(PARTS[name](folder))), 2)) + "\n"


def _lines(value: Any, levels: int) -> Iterator[str]:
    if not isinstance(value, dict) or not value or not levels:
        yield json.dumps(value, ensure_ascii=False)
        return
    yield "{"
    for number, (name, below) in enumerate(value.items(), 1):
        *before, last = _lines(below, levels - 1)
        first, *rest = [*before, last + ("," if number < len(value) else "")]
        yield f" {json.dumps(name)}: {first}"
        yield from (f" {line}" for line in rest)
    yield "}"


def main() -> None:
    """Write all records anew."""
    for name in PARTS:
        with tempfile.TemporaryDirectory() as folder:
            file_of(name).write_text(text(name, Path(folder)))


if __name__ == "__main__":
    main()
