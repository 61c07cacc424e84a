"""Jobs whose data are, in part or as a whole, results of others."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any, ClassVar

from taskqueue import Job, task


@dataclass
class Page:
    """A page that was read."""

    url: str
    read_on: date


@dataclass
class Order:
    """What is to be done with pages."""

    pages: list[Page]
    language: str = "en"


class Read(Job[str, Page]):
    """Reads a page."""

    def start(self) -> Page:
        return Page(self.data, date(2026, 7, 1))


class Translate(Job[Order, str]):
    """Needs pages, and a language."""

    def start(self, data: Order) -> str:
        assert all(isinstance(page, Page) for page in data.pages)
        return f"{data.language}: {', '.join(f'{page.url} of {page.read_on:%d.%m.}' for page in data.pages)}"


class Plain(Job):
    """Returns its data."""

    def start(self) -> Any:
        return self.data


class Total(Job[list[int], int]):
    """Always receives all results, wherever it depends on others."""

    options: ClassVar = {"receives": "results"}

    def start(self) -> int:
        return sum(self.data)


class Careful(Plain):
    """Looks at its data before it runs."""

    def is_ready(self) -> bool:
        return bool(self.data["page"] == 7)


@task
def add(left: int, right: int = 0) -> int:
    """Add numbers."""
    return left + right


class Broken(Job):
    """Fails."""

    def start(self) -> None:
        raise ValueError("broken")
