"""Jobs that declare the types of their data, states and results."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NewType
from uuid import UUID

from pydantic import BaseModel
from typing_extensions import NotRequired, TypedDict

from taskqueue import Job, task


class Currency(Enum):
    """A currency."""

    EUR = "eur"
    USD = "usd"


class Point(NamedTuple):
    """A point."""

    x: float
    y: float = 0


class Address(TypedDict):
    """An address."""

    street: str
    number: NotRequired[int]


UserId = NewType("UserId", int)


class Money:
    """A type that only its own codec can write."""

    def __init__(self, cents: int) -> None:
        self.cents = cents

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and other.cents == self.cents

    def __hash__(self) -> int:
        return hash(self.cents)


class MoneyCodec:
    """Writes money as cents."""

    def encode(self, value: Money) -> int:
        """Return the cents."""
        return value.cents

    def decode(self, plain: Any) -> Money:
        """Return the money."""
        if not isinstance(plain, int):
            raise TypeError("cents are a whole number")
        return Money(plain)


@dataclass(frozen=True)
class Line:
    """A line of an invoice."""

    amount: Decimal
    tags: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Special(Line):
    """A line with a field of its own."""

    reason: str = ""


@dataclass
class Invoice:
    """An invoice."""

    number: int
    day: date
    lines: list[Line]
    currency: Currency = Currency.EUR
    id: UUID | None = None
    address: Address | None = None
    user: UserId = UserId(0)
    origin: Point = Point(0, 0)  # noqa: RUF009 - a tuple does not change
    at: time = time(12)
    due_in: timedelta = timedelta(days=14)
    file: Path = Path("/invoice")
    kind: Literal["invoice", "note"] = "invoice"
    paid: Annotated[Money, MoneyCodec()] = field(default_factory=lambda: Money(0))
    notes: dict[date, tuple[int, str]] = field(default_factory=dict)
    parts: list[Invoice] = field(default_factory=list)


class Receipt(NamedTuple):
    """A receipt."""

    number: int
    total: Decimal


class Bill(Job[Invoice, Receipt]):
    """Bills an invoice."""

    def start(self) -> Receipt:
        assert isinstance(self.data, Invoice)
        return Receipt(self.data.number, sum((line.amount for line in self.data.lines), Decimal(0)))


class Bills(Job):
    """Bills invoices, one after the other."""

    state: set[int] | None = None

    def start(self, data: list[Invoice]) -> dict[str, Receipt]:
        done = self.state or set()
        for invoice in data:
            self.checkpoint({*done, invoice.number})
        return {str(invoice.number): Receipt(invoice.number, Decimal(0)) for invoice in data}


class Wrong(Job[None, date]):
    """Returns something else than it declares."""

    def start(self) -> date:
        return "tomorrow"  # type: ignore[return-value]


class Order(BaseModel):
    """An order, checked by pydantic."""

    number: int
    lines: list[Decimal]
    day: date


class Ship(Job[Order, Order]):
    """Ships an order."""

    def start(self) -> Order:
        return self.data


class Base(Job[Invoice, Receipt]):
    """A class between."""


class Derived(Base):
    """Declares nothing itself."""

    def start(self) -> Receipt:
        return Receipt(self.data.number, Decimal(1))


@task
def bill(invoice: Invoice, day: date, limit: int | None = None) -> Receipt:
    """Bill an invoice."""
    assert isinstance(day, date)
    return Receipt(invoice.number, Decimal(limit or 0))
