"""Every feature and every fault of the ancestors has its name here, its page, and a test that exists."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.test_pages import CHECKOUT

ANCESTORS = CHECKOUT / "docs/ancestors/features.md"
FAULTS = CHECKOUT / "docs/ancestors/faults.md"

FEATURES = 115
HANDLES = {"PW": 30, "RW": 27, "LW": 8, "JW": 15}
"""How many faults are known of php-task-scheduler, Recruiter, lzq and JobBoy."""

NAMED = (1, 2, 3, 5, 6, 7, 8, 9, 10, 14)
"""The test vectors that a store is involved in: there is a test named after each."""

REGRESSIONS = (
    *("rw_1", "rw_2", "rw_3", "rw_4", "rw_8", "rw_13"),
    *("pw_1", "pw_5", "pw_6", "pw_7", "pw_11", "pw_16", "pw_17", "pw_19"),
    *("jw_2", "jw_5", "lw_2", "lw_3"),
)


def rows(page: Path) -> Iterator[list[str]]:
    """Yield the cells of every row that has a number or a handle."""
    for line in page.read_text().splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells and re.fullmatch(r"\d+|[A-Z]+-\d+", cells[0]):
            yield cells


@functools.cache
def named_in(path: Path) -> frozenset[str]:
    """Return the names of the tests in a file."""
    tree = ast.parse(path.read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def are_there(cell: str) -> bool:
    """Return whether a cell names tests that exist."""
    return all(is_there(test) for test in cell.split(", "))


def is_there(test: str) -> bool:
    """Return whether a cell names a test that exists."""
    found = re.fullmatch(r"`(tests/[\w/]+\.py)::(test_\w+)`", test)
    return found is not None and (CHECKOUT / found[1]).is_file() and found[2] in named_in(CHECKOUT / found[1])


def test_every_feature_has_a_row() -> None:
    assert [int(row[0]) for row in rows(ANCESTORS) if row[0].isdigit()] == list(range(1, FEATURES + 1))


def test_every_feature_has_its_name_its_page_and_a_test_that_exists() -> None:
    for number, feature, name, page, tests in (row for row in rows(ANCESTORS) if row[0].isdigit()):
        link = re.fullmatch(r"\[[^]]+\]\(([^)#]+)\)", page)
        assert feature, number
        assert name, number
        assert link is not None, number
        assert (ANCESTORS.parent / link[1]).is_file(), number
        assert are_there(tests), f"{number}: {tests}"


def test_every_vector_has_a_test_that_exists() -> None:
    text = ANCESTORS.read_text()
    vectors = re.findall(r"^\| vector (\d+) \| [^|]+ \| ([^|]+) \|$", text, re.MULTILINE)

    assert [int(number) for number, _ in vectors] == list(range(1, 18))
    for number, tests in vectors:
        assert are_there(tests), f"{number}: {tests}"


def test_every_fault_has_a_test_that_exists() -> None:
    known = [f"{system}-{number}" for system, count in HANDLES.items() for number in range(1, count + 1)]

    assert [row[0] for row in rows(FAULTS)] == known
    for handle, fault, answer, tests in rows(FAULTS):
        assert fault, handle
        assert answer, handle
        assert are_there(tests), f"{handle}: {tests}"


@pytest.mark.parametrize("number", NAMED)
def test_a_vector_is_named_in_a_test(number: int) -> None:
    names = named_in(CHECKOUT / "tests/ancestors/test_vectors.py")

    assert any(name.startswith(f"test_vector_{number}_") for name in names)


@pytest.mark.parametrize("handle", REGRESSIONS)
def test_a_fault_that_must_not_return_is_named_in_a_test(handle: str) -> None:
    names = named_in(CHECKOUT / "tests/ancestors/test_regressions.py")

    assert any(re.search(rf"_{handle}(_|$)", name) for name in names)


def test_what_is_no_test_is_not_taken_for_one() -> None:
    assert is_there("`tests/docs/test_ancestors.py::test_what_is_no_test_is_not_taken_for_one`")
    assert not is_there("`tests/docs/test_ancestors.py::test_something_else`")
    assert not is_there("`tests/docs/test_nothing.py::test_something_else`")
    assert not is_there("a test")
    assert not are_there("`tests/docs/test_ancestors.py::test_what_is_no_test_is_not_taken_for_one`, a test")
