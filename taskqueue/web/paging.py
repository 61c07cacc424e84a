"""Shows a list in pages: the rows whose name contains a text, starting after the last row shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Row = TypeVar("Row")

PAGE = 50
"""Rows of one page: with more, a page of queues is larger than 150 kB."""


@dataclass(frozen=True, kw_only=True)
class Part(Generic[Row]):
    """The rows of one page."""

    rows: Sequence[Row]
    name: str
    """The text that is in the names of all rows."""
    next: str
    """The name after which the next page starts; empty on the last page."""
    is_first: bool
    found: int
    """How many rows there are on all pages."""

    @property
    def is_whole(self) -> bool:
        """Return whether all rows of the list are on this page."""
        return self.is_first and not self.next and not self.name


def part_of(
    rows: Sequence[Row], name_of: Callable[[Row], str], given: Mapping[str, str], most: int = PAGE
) -> Part[Row]:
    """Return the page that ``name`` and ``after`` ask for; if that name is gone, it is the first page."""
    name, after = given.get("name", "").strip(), given.get("after", "")
    matching = [row for row in rows if name.lower() in name_of(row).lower()]
    begin = next((place for place, row in enumerate(matching, 1) if after and name_of(row) == after), 0)
    shown = matching[begin : begin + most]
    more = begin + most < len(matching)
    return Part(
        rows=shown, name=name, next=name_of(shown[-1]) if more else "", is_first=begin == 0, found=len(matching)
    )
