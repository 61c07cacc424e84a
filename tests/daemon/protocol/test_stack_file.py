"""The memory between worker and manager: an answer is read whole or not at all, and C code cannot make it grow."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from taskqueue.daemon.protocol.stack_file import StackFile
from taskqueue.model.stack import MOST_BYTES


@pytest.fixture
def file() -> Iterator[StackFile]:
    made = StackFile()
    yield made
    made.close()


def test_the_answer_to_a_request_is_read(file: StackFile) -> None:
    assert file.read_request() == (0, "")
    file.request(1, "a" * 24)
    assert file.read_request() == (1, "a" * 24)
    assert file.read_answer(1) is None

    file.answer(1, "é\n" * 10)

    assert file.read_answer(1) == "é\n" * 10


def test_an_answer_to_an_earlier_request_is_none_to_a_later_one(file: StackFile) -> None:
    file.answer(1, "before")

    assert file.read_answer(2) is None
    file.answer(3, "after")
    assert file.read_answer(2) == "after"


def test_a_half_written_answer_is_none(file: StackFile) -> None:
    file.answer(1, "the first answer")
    os.pwrite(file.fileno(), b"x", 64 + 16)

    assert file.read_answer(1) is None


def test_an_answer_is_bounded(file: StackFile) -> None:
    file.answer(1, "x" * 2 * MOST_BYTES)

    assert file.read_answer(1) == "x" * MOST_BYTES


def test_what_c_code_writes_is_read_and_begins_anew_with_each_request(file: StackFile) -> None:
    file.request(1, "a" * 24)
    os.write(file.fileno(), b"Stack\n")
    assert file.read_dump() == "Stack\n"

    file.request(2, "a" * 24)

    assert file.read_dump() == ""


def test_c_code_cannot_make_it_grow(file: StackFile) -> None:
    file.request(1, "a" * 24)
    size = os.fstat(file.fileno()).st_size

    with pytest.raises(PermissionError):
        [os.write(file.fileno(), b"x" * 4096) for _ in range(size // 4096)]

    assert os.fstat(file.fileno()).st_size == size
    assert len(file.read_dump()) <= 32 * 1024
