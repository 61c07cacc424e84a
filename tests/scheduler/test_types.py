"""Declared types: values are checked when they are added, and restored as what they were."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import InitVar, dataclass, field, replace
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import pytest
from bson import ObjectId

from taskqueue import Job, Scheduler, Status, StepwiseJob, task
from taskqueue.errors import InvalidJob
from taskqueue.model.codecs import form
from taskqueue.model.record import changed
from taskqueue.model.serializer import encode
from taskqueue.store import Store
from tests.scheduler.typed import (
    Address,
    Bill,
    Bills,
    Currency,
    Derived,
    Invoice,
    Line,
    Money,
    Order,
    Point,
    Receipt,
    Ship,
    Special,
    UserId,
    Wrong,
    bill,
)

if TYPE_CHECKING:
    from collections import OrderedDict

DAY = date(2030, 7, 1)


@dataclass
class Tree:
    """Contains others of its kind."""

    trees: list[Tree] = field(default_factory=list)


@dataclass
class Divided:
    """Looks at its data with errors of several classes."""

    by: int

    def __post_init__(self) -> None:
        1 / self.by


@dataclass
class Unresolved:
    """Names no type."""

    value: date.nowhere  # type: ignore[name-defined]


class Doubled:
    """A codec of numbers."""

    def encode(self, value: int) -> int:
        return value * 2

    def decode(self, plain: int) -> int:
        return plain // 2


class RecursiveAlias:
    """What ``type Nested = list[Nested]`` is from Python 3.12 on: a name whose type is found when it is asked for."""

    @property
    def __value__(self) -> Any:
        return list[self]  # type: ignore[valid-type]


@contextmanager
def traced() -> Iterator[None]:
    """Surround a call; the wrapper is a function of another module."""
    yield


class Traced(Job):
    """Has a decorated start."""

    @traced()
    def start(self, data: Address) -> str:
        return f"{data['street']} {data['number']}"


class Counted(Job):
    """Takes whole numbers as keys, which are kept as text."""

    def start(self, data: dict[int, int]) -> int:
        return sum(data)


class Refunded(StepwiseJob[None, Receipt]):
    """Fails, and cleans up."""

    def iterate(self) -> bool:
        raise ValueError("out of stock")


class Hidden(Job):
    """Declares a type that is not there when the program runs."""

    def start(self, data: OrderedDict[str, str]) -> None:
        """Do nothing."""


def an_invoice(**fields: Any) -> Invoice:
    return replace(Invoice(7, DAY, [Line(Decimal("1.50"), frozenset(("a", "b")))]), **fields)


FULL = an_invoice(
    currency=Currency.USD,
    id=UUID(int=5),
    address=Address(street="Elm", number=3),
    origin=Point(1.5, 2),
    at=time(9, 30),
    due_in=timedelta(days=1, microseconds=5),
    file=Path("/tmp/a"),
    kind="note",
    paid=Money(250),
    notes={DAY: (1, "first")},
    parts=[an_invoice(number=8, address=Address(street="Oak"))],
    user=UserId(3),
)


def test_data_and_result_are_restored_as_what_they_were(scheduler: Scheduler) -> None:
    process = scheduler.run_job(Bill, FULL)

    assert process.data == FULL
    assert process.result == Receipt(7, Decimal("1.50"))
    assert isinstance(scheduler.get_job(process.id).result, Receipt)


def test_the_annotation_of_start_declares_the_data_too(scheduler: Scheduler) -> None:
    process = scheduler.run_job(Bills, [FULL, an_invoice(number=9)], reraise=True)

    assert process.data == [FULL, an_invoice(number=9)]
    assert process.result == {"7": Receipt(7, Decimal(0)), "9": Receipt(9, Decimal(0))}
    assert process.snapshot.state == "[9]"


def test_a_class_without_annotations_has_those_of_its_base(scheduler: Scheduler) -> None:
    assert scheduler.run_job(Derived, FULL).result == Receipt(7, Decimal(1))


class Static(Job):
    """Takes its data without an instance."""

    @staticmethod
    def start(data: Line) -> str:
        assert isinstance(data, Line)
        return f"static {data.amount}"


class OfClass(Job):
    """Takes its data on the class."""

    @classmethod
    def start(cls, data: Line) -> str:
        assert isinstance(data, Line)
        return f"class {data.amount}"


@pytest.mark.parametrize(("kind", "words"), [(Static, "static 2.5"), (OfClass, "class 2.5")])
def test_start_may_be_a_method_without_an_instance(scheduler: Scheduler, kind: type[Job], words: str) -> None:
    assert scheduler.run_job(kind, Line(Decimal("2.5"))).result == words
    with pytest.raises(InvalidJob, match=r"data: 5 is not a Line"):
        scheduler.add_job(kind, 5)


class Lacking(Job):
    """Goes on without data."""

    def start(self, data: Line = None) -> str:  # type: ignore[assignment]
        return "none" if data is None else str(data.amount)


class Defaulting(Job):
    """Has data of its own."""

    def start(self, data: Line = Line(Decimal(7))) -> str:  # noqa: B008
        return str(data.amount)


@pytest.mark.parametrize(("kind", "words"), [(Lacking, "none"), (Defaulting, "7")])
def test_a_default_of_the_data_is_used_where_there_are_none(scheduler: Scheduler, kind: type[Job], words: str) -> None:
    assert scheduler.run_job(kind).result == words
    assert scheduler.run_job(kind, Line(Decimal("2.5"))).result == "2.5"
    with pytest.raises(InvalidJob, match=r"data: 5 is not a Line"):
        scheduler.add_job(kind, 5)


@task
def collect(first: int, untyped, *rest: int, day: date = None, **lines: Line) -> str:  # type: ignore[no-untyped-def, assignment]  # noqa: RUF013
    """Return its lines."""
    assert all(isinstance(line, Line) for line in lines.values())
    return f"{first} {untyped} {day} {sorted(lines)}"


def test_keyword_arguments_of_a_task_are_checked_and_restored(scheduler: Scheduler) -> None:
    data = {"first": 1, "untyped": "x", "a": Line(Decimal(1)), "b": Line(Decimal(2)), "day": None}
    assert scheduler.run_job(collect, data).result == "1 x None ['a', 'b']"

    with pytest.raises(InvalidJob, match=r"data\['b'\]: 5 is not a Line"):
        scheduler.add_job(collect, {"first": 1, "untyped": 2, "b": 5})


class Nothing(Job[None, None]):
    """Takes no data."""

    def start(self) -> None:
        """Do nothing."""


def test_data_of_a_job_without_data_are_refused_in_words(scheduler: Scheduler) -> None:
    with pytest.raises(InvalidJob, match=r"data: 3 is not None$"):
        scheduler.add_job(Nothing, 3)  # type: ignore[misc]


@dataclass
class Sealed:
    """Needs a value that is not kept."""

    number: int
    key: InitVar[str]


class Opening(Job[Sealed, None]):
    """Needs data that cannot be restored."""

    def start(self) -> None:
        """Do nothing."""


def test_data_that_could_not_be_restored_are_refused_when_they_are_added(scheduler: Scheduler) -> None:
    with pytest.raises(InvalidJob, match=r"Sealed cannot be restored: it needs 'key', which is not a field"):
        scheduler.add_job(Opening, Sealed(1, "x"))


def test_arguments_of_a_task_are_restored(scheduler: Scheduler) -> None:
    process = scheduler.run_job(bill, {"invoice": FULL, "day": DAY}, reraise=True)

    assert process.result == Receipt(7, Decimal(0))
    assert process.data == {"invoice": FULL, "day": DAY}


def test_models_of_pydantic_check_and_restore_themselves(scheduler: Scheduler) -> None:
    order = Order(number=1, lines=[Decimal("2.50")], day=DAY)

    assert scheduler.run_job(Ship, order).result == order
    with pytest.raises(InvalidJob, match=r"data\.lines\[1\]: 'x': Input should be a valid decimal"):
        scheduler.add_job(Ship, plain(lines=[1, "x"]))


def plain(**fields: Any) -> Any:
    return {"number": 7, "day": "2030-07-01", "lines": [{"amount": Decimal(1)}]} | fields


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, r"data: None is not an Invoice"),
        (5, r"data: 5 is not an Invoice"),
        ({}, r"data\.number is missing: Invoice requires it"),
        (
            plain(lines=[{"amount": Decimal(1)}] * 3 + [{"amount": "x"}]),
            r"data\.lines\[3\]\.amount: 'x' is not a Decimal",
        ),
        (plain(lines=[{"amout": Decimal(1)}]), r"data\.lines\[0\]: Line has no field 'amout': use amount, tags"),
        (plain(day="soon"), r"data\.day: 'soon' is not a date"),
        (plain(currency="gbp"), r"data\.currency: 'gbp' is not a Currency"),
        (plain(id="5"), r"data\.id: '5' is not a UUID or None"),
        (plain(address={"number": 3}), r"data\.address\['street'\] is missing: Address requires it"),
        (plain(origin={"x": "1"}), r"data\.origin\.x: '1' is not a float"),
        (plain(kind="letter"), r"data\.kind: 'letter' is not a choice of 'invoice', 'note'"),
        (plain(due_in="long"), r"data\.due_in: 'long' is not a timedelta"),
        (plain(paid="much"), r"data\.paid: 'much' is not a Money \(cents are a whole number\)"),
        (plain(notes={"2030-07-01": [1]}), r"data\.notes\['2030-07-01'\]: \[1\] is not a tuple of 2"),
        (plain(notes={"soon": [1, ""]}), r"data\.notes key: 'soon' is not a date"),
        (plain(number=True), r"data\.number: True is not an int"),
        (plain(file=5), r"data\.file: 5 is not a Path"),
        (plain(user="me"), r"data\.user: 'me' is not an int"),
        (an_invoice(lines=[Special(Decimal(1))]), r"data\.lines\[0\]: Special\(.*\) is not a Line"),
    ],
)
def test_data_that_do_not_fit_are_refused_with_their_path(scheduler: Scheduler, data: Any, words: str) -> None:
    with pytest.raises(InvalidJob, match=words):
        scheduler.add_job(Bill, data)
    assert list(scheduler.get_jobs()) == []


@pytest.mark.parametrize("key", ["--5", "9" * 5000])
def test_a_key_that_looks_like_a_number_is_refused_like_any_other(scheduler: Scheduler, key: str) -> None:
    assert scheduler.run_job(Counted, {"-5": 1, 7: 1}).result == 2
    with pytest.raises(InvalidJob, match=r"data key: .* is not an int"):
        scheduler.add_job(Counted, {key: 1})


def test_one_of_many_is_named(scheduler: Scheduler) -> None:
    with pytest.raises(InvalidJob, match=r"jobs\[1\]\.data\.number: 'x' is not an int"):
        scheduler.add_jobs([(Bill, FULL), (Bill, plain(number="x"))])


def test_data_in_the_form_in_which_they_are_kept_fit_as_well(scheduler: Scheduler) -> None:
    assert scheduler.add_job(Bill, plain()).data == an_invoice(lines=[Line(Decimal(1))])


def test_equal_data_are_kept_alike(scheduler: Scheduler) -> None:
    first, second = ({"b", "a", "c"}, {"c", "b", "a"})
    one = scheduler.add_job_once(Bill, an_invoice(lines=[Line(Decimal(1), frozenset(first))]))

    assert scheduler.add_job_once(Bill, an_invoice(lines=[Line(Decimal(1), frozenset(second))])) == one


def test_a_change_of_data_is_checked_and_kept_alike(scheduler: Scheduler) -> None:
    process = scheduler.add_job(Bill, FULL)

    assert scheduler.update_job(process.id, data=an_invoice(number=8)).data == an_invoice(number=8)
    with pytest.raises(InvalidJob, match=r"data\.day: 5 is not a date"):
        scheduler.update_job(process.id, data=plain(day=5))


def test_the_annotations_of_a_decorated_start_are_those_of_its_module(scheduler: Scheduler) -> None:
    assert scheduler.run_job(Traced, Address(street="Elm", number=3)).result == "Elm 3"


def test_a_type_that_cannot_be_resolved_fails_its_job_and_no_other(scheduler: Scheduler, store: Store) -> None:
    unresolved = r"Hidden\.start: the type of data, .*, cannot be resolved"
    with pytest.raises(InvalidJob, match=unresolved):
        scheduler.add_job(Hidden, {})
    process = scheduler.add_job(Bill, FULL)
    store.add([changed(process.snapshot, id=(hidden := ObjectId("0" * 24)), job=f"{__name__}:Hidden")])
    scheduler.run_pending()

    failed = scheduler.get_job(hidden)
    assert failed.status is Status.FAILED
    assert failed.error is not None
    assert re.match(unresolved, failed.error.message)
    assert process.refresh().is_done


def test_data_that_another_version_added_fail_their_job_for_good(scheduler: Scheduler, store: Store) -> None:
    process = scheduler.add_job(Bill, FULL, retry=5)
    other = changed(process.snapshot, id=ObjectId(), data=encode(plain(day="soon")))
    store.add([other])
    scheduler.run_pending()

    failed = scheduler.get_job(other.id)
    assert failed.status is Status.FAILED
    assert failed.error is not None
    assert failed.error.message == "data.day: 'soon' is not a date"


def test_a_field_that_the_class_no_longer_has_is_left_out(scheduler: Scheduler) -> None:
    process = scheduler.add_job(Bill, FULL)
    kept = process.snapshot.data.replace('"number":7', '"number":7,"color":"red"', 1)
    process.snapshot = changed(process.snapshot, data=kept)
    assert process.data == FULL


def test_a_result_that_is_not_of_the_declared_type_fails_the_job_for_good(scheduler: Scheduler) -> None:
    process = scheduler.run_job(Wrong, retry=3)

    assert process.status is Status.FAILED
    assert process.error is not None
    assert process.error.message == "result: 'tomorrow' is not a date"


def test_a_job_that_declares_its_result_cleans_up_once(scheduler: Scheduler) -> None:
    process = scheduler.run_job(Refunded)

    assert process.status is Status.FAILED
    assert [attempt.outcome for attempt in process.attempts] == ["Failed", "Done"]


def test_a_process_that_has_not_imported_the_class_gets_plain_data(scheduler: Scheduler, url: str) -> None:
    process = scheduler.run_job(Bill, an_invoice())
    script = (
        "import sys; from taskqueue import Scheduler\n"
        "process = Scheduler(sys.argv[1]).get_job(sys.argv[2])\n"
        "assert 'tests.scheduler.typed' not in sys.modules\n"
        "print(process.data['day'], process.result['number'])"
    )
    ran = subprocess.run([sys.executable, "-c", script, url, str(process.id)], capture_output=True, text=True)

    assert ran.stdout == "2030-07-01 7\n", ran.stderr


CIRCLE = Tree()
CIRCLE.trees.append(CIRCLE)


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (Tree, CIRCLE, "is nested too deeply, or contains itself"),
        (Divided, {"by": 0}, "data: ZeroDivisionError: division by zero"),
        (Unresolved, {"value": 1}, "the types of Unresolved cannot be resolved"),
        (dict[tuple[int, int], int], {(1, 2): 3}, r"data key: \(1, 2\) is not stored as text"),
        (timedelta, timedelta.max, "data: days="),
    ],
)
def test_absurd_values_are_refused_as_others_are(kind: Any, value: Any, words: str) -> None:
    with pytest.raises(InvalidJob, match=words):
        form(kind).encode(form(kind).decode(value, "data") if isinstance(value, dict) else value, "data")


def test_a_set_of_lists_fails_its_job_for_good() -> None:
    with pytest.raises(InvalidJob, match="data: unhashable type: 'list'"):
        form(set[Any]).decode([[1]], "data")


def test_unions_of_another_order_are_other_types() -> None:
    assert form(list[date | str]).decode(["2030-07-01"], "data") == [DAY]
    assert form(list[str | date]).decode(["2030-07-01"], "data") == ["2030-07-01"]


@pytest.mark.parametrize("kind", [int | None, Any])
def test_a_codec_may_be_for_several_types(kind: Any) -> None:
    assert form(Annotated[kind, Doubled()]).encode(4, "data") == 8


def test_an_alias_may_contain_itself() -> None:
    assert form(RecursiveAlias()).encode([[], [[]]], "data") == [[], [[]]]
