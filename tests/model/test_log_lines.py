"""Log lines that are kept are bounded, one by one and together, and come back as they were."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from taskqueue.model.log_lines import (
    LARGEST_LINE,
    LINE_LIMIT,
    MOST_BYTES,
    MOST_LINES,
    LogLine,
    cut,
    kept_text,
    lines_of,
    written,
)

AT = datetime(2026, 7, 1, 12, tzinfo=timezone.utc)


def a_line(number: int, text: str = "it begins") -> bytes:
    """Return a line as it is written."""
    return written(7, number, AT.timestamp(), "info", "shop.mail", text)


def test_lines_come_back_as_they_were_with_a_nul_written_out() -> None:
    kept = kept_text(2, [a_line(1, "first\nand\x00 more"), a_line(2, "é\x1b[2J")])

    assert list(lines_of(5, kept)) == [
        LogLine(AT, "info", "shop.mail", "first\nand\\x00 more", 2, 5, 1),
        LogLine(AT, "info", "shop.mail", "é\x1b[2J", 2, 5, 2),
    ]


def test_the_last_lines_are_kept() -> None:
    found = list(lines_of(1, kept_text(1, [a_line(number) for number in range(1, MOST_LINES + 51)])))

    assert (len(found), found[0].number, found[-1].number) == (MOST_LINES, 51, MOST_LINES + 50)


def test_long_lines_are_kept_as_far_as_there_is_room() -> None:
    text = kept_text(1, [a_line(number, "x" * LINE_LIMIT) for number in range(1, 100)])

    assert MOST_BYTES * 0.9 < len(text) <= MOST_BYTES + 2
    assert list(lines_of(1, text))[-1].number == 99


def test_a_huge_line_is_cut_in_its_middle_with_a_mark() -> None:
    found = cut("a" * 100_000 + "the end")

    assert found.startswith("aaa")
    assert found.endswith("the end")
    assert "[… 95,911 characters …]" in found
    assert len(found) < LINE_LIMIT + 50


@pytest.mark.parametrize("text", ["\x01" * 9999, "\U0001f600" * 9999, "\udc80" * 9999])
def test_the_largest_line_fits(text: str) -> None:
    assert len(a_line(1, text)) <= LARGEST_LINE


def test_a_lone_surrogate_is_written_out() -> None:
    [line] = lines_of(1, kept_text(1, [a_line(1, "file \udc80")]))

    assert line.message == "file \\udc80"


@pytest.mark.parametrize("damaged", ["", "x", "[1]", '[1,"a",0,"info","shop","b"]', "[1,1,1e99,2,3,4]", "nul"])
def test_a_damaged_line_is_left_out(damaged: str) -> None:
    text = kept_text(1, [a_line(1)])

    assert len(list(lines_of(1, f"{text}{damaged}\n"))) == 1
