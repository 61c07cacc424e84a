"""Text that others wrote is shown and logged without the characters that command a terminal or mislead a reader."""

from __future__ import annotations

import pytest

from taskqueue.model.shown_text import LONGEST_CODE, as_code, in_json, logged, shown

HARMLESS = "Größe 7 µm, 漢字, \u0646\u0635, 👩‍👧, tab\tstays"


def test_what_people_write_is_shown_and_logged_as_it_is() -> None:
    assert shown(HARMLESS) == HARMLESS
    assert logged(HARMLESS) == HARMLESS
    assert in_json(HARMLESS) == HARMLESS


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("\x1b[2J\x07", r"\x1b[2J\x07"),
        ("\x9b31m", r"\x9b31m"),
        ("50%\rdone", r"50%\rdone"),
        ("a\0b\x7f", r"a\x00b\x7f"),
        ("user\u202egpj.exe", r"user\u202egpj.exe"),
        ("\u2066x\u2069\u200f\u061c", r"\u2066x\u2069\u200f\u061c"),
        ("one\u2028two\u2029three\x85four", r"one\u2028two\u2029three\x85four"),
        ("\udcff", r"\udcff"),
    ],
)
def test_what_commands_a_terminal_is_written_out(text: str, written: str) -> None:
    assert shown(text) == written
    assert logged(text) == written


def test_shown_text_keeps_its_lines_and_logged_text_is_one() -> None:
    assert shown("first\r\nsecond\n") == "first\nsecond\n"
    assert logged("first\r\nsecond\n") == r"first\r\nsecond\n"


def test_json_says_the_same_in_harmless_characters() -> None:
    assert in_json('"\u202e\x9b\x7f\udcff"\n') == r'"\u202e\u009b\u007f\udcff"' + "\n"


class Unspeakable:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("a", "'a'"),
        (10**5000, "a whole number of 16,610 bits"),
        ([10**5000], "a list with a whole number of over 4,300 digits"),
        (Unspeakable(), "an Unspeakable whose repr() raises RuntimeError"),
        ({Unspeakable(): 1}, "a dict whose repr() raises RuntimeError"),
    ],
    ids=["text", "number", "numbers", "object", "key"],
)
def test_any_value_is_written_as_code_or_in_words(value: object, written: str) -> None:
    assert as_code(value) == written


def test_a_long_value_is_cut() -> None:
    assert len(as_code("x" * 10_000_000)) == LONGEST_CODE
