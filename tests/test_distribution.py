"""Tests that wait run beside tests that compute, long ones first, and files stay together where they share much."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import distribution

TESTS = Path(__file__).parent


@pytest.mark.parametrize(
    "place",
    [
        *(*distribution.SPREAD, *distribution.UNCOUNTED, *distribution.TOGETHER, *distribution.LONGEST),
        *distribution.ON_ALL_STORES,
    ],
)
def test_every_file_that_is_named_is_there(place: str) -> None:
    assert (TESTS / place).exists()


def test_a_file_stays_together_but_for_tests_that_take_long_by_themselves() -> None:
    alone = "tests/chaos/test_storm.py::test_a[x/y]"

    assert distribution.scope("tests/store/test_claims.py::test_a") == "tests/store/test_claims.py"
    assert distribution.scope(alone) == alone
    assert distribution.scope("tests/acceptance/test_seats.py::test_b") == "tests/acceptance/test_seats.py::test_b"
    assert distribution.scope("tests/acceptance/test_quickstart.py::test_c") == "tests/acceptance/test_quickstart.py"


def test_of_a_test_on_several_stores_only_the_case_on_sqlite_is_counted_outside_of_the_contract() -> None:
    assert not distribution.is_uncounted("acceptance/test_seats.py", ["sqlite", 3])
    assert distribution.is_uncounted("acceptance/test_seats.py", ["mongodb", 3])
    assert not distribution.is_uncounted("store/test_claims.py", ["mongodb"])
    assert distribution.is_uncounted("store/test_claims.py", ["postgresql"])
    assert not distribution.is_uncounted("store/test_postgresql_bells.py", ["postgresql"])
    assert not distribution.is_uncounted("outbox/test_rows.py", ["postgresql"])
    assert distribution.is_uncounted("chaos/test_storm.py", ["sqlite"])


def test_the_longest_files_come_first() -> None:
    files = ["model/test_job.py", "web/test_openapi.py", "chaos/test_storm.py", "cli/test_add.py"]

    files.sort(key=distribution.place)

    assert files == ["chaos/test_storm.py", "web/test_openapi.py", "model/test_job.py", "cli/test_add.py"]


def test_a_case_on_another_store_is_repeated_if_there_is_one_on_sqlite() -> None:
    seats = "tests/acceptance/test_seats.py::test_a[{}-3]"
    tests = {seats.format("sqlite"), "tests/store/test_claims.py::test_b[sqlite]"}
    assert distribution.is_repeated(seats.format("mongodb"), "mongodb", tests)
    assert not distribution.is_repeated(seats.format("mongodb"), 3, tests)
    assert not distribution.is_repeated(seats.format("sqlite"), "sqlite", tests)
    assert not distribution.is_repeated("tests/acceptance/test_seats.py::test_c[mongodb]", "mongodb", tests)
    assert not distribution.is_repeated("tests/store/test_claims.py::test_b[mongodb]", "mongodb", tests)
