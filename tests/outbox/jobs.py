"""Jobs that the tests of this folder add."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar

from taskqueue import Job, task


class Echo(Job):
    """Returns its data."""

    def start(self) -> Any:
        return self.data


@dataclass
class Invoice:
    """The typed data of a job."""

    number: int
    due_at: datetime
    amount: Decimal


class Declaring(Job[Invoice, None]):
    """Declares options and typed data."""

    options: ClassVar[Any] = {
        "retry": 7,
        "retry_interval": 60,
        "tags": ["billing"],
        "limits": "5 by=number",
        "timeout": "5m",
        "queue": "invoices",
    }

    def start(self) -> None:
        """Do nothing."""


@task(retry=2)
def tell(text: str) -> str:
    """Return the text."""
    return text


def is_open(data: Any) -> bool:
    """Return that a job may run."""
    return True
