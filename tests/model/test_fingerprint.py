"""Errors of one cause have one fingerprint, whatever ids and numbers they name and wherever their line has moved."""

from __future__ import annotations

import pytest

from taskqueue.model.fingerprint import LONGEST_LINE, LONGEST_MESSAGE, fingerprint, type_of
from taskqueue.model.record import Failure

OWN = '  File "/app/shop.py", line {line}, in start\n    rate = RATES[country]\n'
LIBRARY = '  File "/usr/lib/python3.11/json/decoder.py", line 355, in raw_decode\n    raise Error(s)\n'


def traceback(*frames: str) -> str:
    """Return the text of a traceback with these frames."""
    return "Traceback (most recent call last):\n" + "".join(frames)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("'vat'", "'vat'"),
        ("order 65f0a1b2c3d4e5f6a7b8c9d0 of ann@example.org", "order … of …"),
        ("no answer in 30.5 s, attempt 4", "no answer in … s, attempt …"),
        ("file '/var/x/12.pdf' can't be read", "file … can't be read"),
        ("123e4567-e89b-12d3-a456-426614174000 at 0xdeadbeef", "… at …"),
        ("'NoneType' object has no attribute 'total'", "'NoneType' object has no attribute 'total'"),
        ("a decade\nof lines", "a decade"),
        ("", ""),
    ],
)
def test_a_message_loses_numbers_ids_and_quoted_values(message: str, expected: str) -> None:
    found = fingerprint(Failure(type="app.Wrong", message=message))

    assert found == (f"app.Wrong: {expected}" if expected else "app.Wrong")
    assert type_of(found) == "app.Wrong"


def test_the_innermost_line_of_own_code_counts_and_not_its_number() -> None:
    found = {
        fingerprint(Failure(type="KeyError", message="'vat'", traceback=traceback(OWN.format(line=line), LIBRARY)))
        for line in (7, 70)
    }

    assert found == {"KeyError: 'vat' (rate = RATES[country])"}
    other = fingerprint(Failure(type="KeyError", message="'vat'", traceback=traceback(LIBRARY)))
    assert other == "KeyError: 'vat'"


def test_a_long_error_has_a_short_fingerprint() -> None:
    code = OWN.format(line=1).replace("country", "x" * 500)
    found = fingerprint(Failure(type="app.Wrong", message="y" * 5000, traceback=traceback(code)))

    assert len(found) == len("app.Wrong: ") + LONGEST_MESSAGE + len(" ()") + LONGEST_LINE
    assert type_of(fingerprint(Failure(type="app.Wrong", message="", traceback=traceback(code)))) == "app.Wrong"
    assert fingerprint(None) == ""
