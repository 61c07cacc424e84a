"""Outputs of nodes that nobody reads: a pipe whose reader stands still, and one that is full from the beginning."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def still_reader() -> Iterator[int]:
    """Return the writing end of a pipe of which nobody reads; the reader does not go away either."""
    reader, writer = os.pipe()
    yield writer
    os.close(writer)
    os.close(reader)


@contextmanager
def full_pipe() -> Iterator[int]:
    """Return the writing end of such a pipe that takes not one byte more."""
    with still_reader() as writer:
        os.set_blocking(writer, False)
        for size in (4096, 1):
            with suppress(BlockingIOError):
                while True:
                    os.write(writer, b"\n" * size)
        os.set_blocking(writer, True)
        yield writer
