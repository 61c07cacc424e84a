"""Outputs that never block: what the reader does not take waits, is dropped, and is counted."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from taskqueue.daemon.runtime.loop import Loop
from taskqueue.daemon.runtime.standard_streams import MOST_UNSENT, NonblockingOutput

LINE = b"x" * 99 + b"\n"
ENOUGH = 3 * MOST_UNSENT // len(LINE)
"""Lines of which some are dropped."""


@pytest.fixture
def ends() -> Iterator[tuple[int, int]]:
    """Return the ends of a pipe."""
    reader, writer = os.pipe()
    yield reader, writer
    for end in (reader, writer):
        with suppress(OSError):
            os.close(end)


def read_all(reader: int) -> bytes:
    os.set_blocking(reader, False)
    text = b""
    with suppress(BlockingIOError):
        while data := os.read(reader, 65536):
            text += data
    return text


def read_what_waits(output: NonblockingOutput, reader: int) -> bytes:
    """Read until nothing more waits in the output."""
    text = read_all(reader)
    while True:
        output.write(b"")
        if not (more := read_all(reader)):
            return text
        text += more


def test_the_flags_of_the_file_are_not_changed(ends: tuple[int, int]) -> None:
    NonblockingOutput(ends[1]).write(LINE)

    assert os.get_blocking(ends[1])
    assert read_all(ends[0]) == LINE


def test_whole_lines_wait_and_come_in_order(ends: tuple[int, int]) -> None:
    output = NonblockingOutput(ends[1])
    lines = [b"%05d" % number + LINE for number in range(5000)]
    for line in lines:
        output.write(line)

    assert read_what_waits(output, ends[0]).splitlines(keepends=True) == lines


def test_what_was_dropped_is_logged_when_the_rest_was_read(
    ends: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Loop()) as loop:
        output = NonblockingOutput(ends[1])
        output.attend(loop)
        for _ in range(ENOUGH):
            output.write(LINE)
        received: list[bytes] = []
        loop.watch(ends[0], lambda: received.append(os.read(ends[0], 65536)))
        loop.after_turn(lambda: loop.stop() if caplog.records else None)
        loop.run()

    dropped = ENOUGH - (b"".join(received) + read_all(ends[0])).count(b"\n")
    assert dropped > 0
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(f"{dropped} lines of output were dropped")


def test_a_reader_that_comes_back_gets_what_waited(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(tmp_path / "fifo", os.O_WRONLY)
    os.close(reader)
    output = NonblockingOutput(writer)  # without a reader it cannot open the pipe a second time
    output.write(LINE)
    reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    for _ in range(5000):
        output.write(LINE)

    assert read_what_waits(output, reader) == 5001 * LINE
    os.close(reader)
    os.close(writer)


def test_the_last_lines_are_awaited_as_long_as_they_are_read(ends: tuple[int, int]) -> None:
    output = NonblockingOutput(ends[1])
    for _ in range(5000):
        output.write(LINE)
    with subprocess.Popen(["wc", "-l"], stdin=ends[0], stdout=subprocess.PIPE, text=True) as counter:
        output.finish(within=60.0)
        os.close(ends[1])
        for descriptor in output.descriptors:
            os.close(descriptor)
        assert counter.communicate()[0].strip() == "5000"


def test_the_last_lines_are_given_up_when_nobody_reads(ends: tuple[int, int]) -> None:
    output = NonblockingOutput(ends[1])
    for _ in range(5000):
        output.write(LINE)

    output.finish(within=0.01)
    os.close(ends[0])
    output.finish(within=60.0)


@pytest.mark.parametrize("closed", ["1", "2"])
def test_a_closed_stream_is_opened_so_that_no_file_gets_its_number(closed: str, tmp_path: Path) -> None:
    code = (
        "import sys, os\n"
        "from taskqueue.daemon.runtime import standard_streams\n"
        "standard_streams.install()\n"
        "print('printed')\n"
        "print('said', file=sys.stderr)\n"
        "standard_streams.finish()\n"
        f"assert os.path.samestat(os.fstat({closed}), os.stat('/dev/null'))\n"
        f"open({str(tmp_path / 'passed')!r}, 'w').close()\n"
    )
    subprocess.run(["sh", "-c", f'exec "$0" -c "$1" {closed}>&-', sys.executable, code], check=True)

    assert (tmp_path / "passed").exists()


def test_an_output_that_no_loop_attends_says_itself_how_many_lines_were_dropped(ends: tuple[int, int]) -> None:
    output = NonblockingOutput(ends[1])
    for _ in range(ENOUGH):
        output.write(LINE)

    text = read_what_waits(output, ends[0])
    output.write(LINE)
    lines = (text + read_all(ends[0])).splitlines()

    [said] = [
        number
        for number, line in enumerate(lines)
        if line.endswith(b" lines of output were dropped: the reader was too slow")
    ]
    assert int(lines[said].split()[0]) + len(lines) - 1 == ENOUGH + 1
