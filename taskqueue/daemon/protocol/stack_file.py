"""Memory in which a worker leaves its stack when its manager asks: a file without a name, made before the fork.

It never grows, so that the handler of a signal can write to it whatever the process is doing.
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import zlib

from taskqueue.model.stack import MOST_BYTES

ASK = signal.SIGRTMAX - 6
"""The signal at which the interpreter writes the stack of all threads, as soon as it comes to Python code."""

DUMP = signal.SIGRTMAX - 7
"""The signal at which C code writes the frames of the main thread, even while other C code blocks that thread."""

_REQUEST = struct.Struct("Q24s")  # number and job id
_ANSWER = struct.Struct("QII")  # number of the request, length and checksum
_ANSWER_AT = 64  # bytes; the request before it has 32
_TEXT_AT = _ANSWER_AT + _ANSWER.size
_DUMP_AT = _TEXT_AT + MOST_BYTES
_SIZE = _DUMP_AT + 32 * 1024


class StackFile:
    """The file of one worker."""

    def __init__(self) -> None:
        self._file = os.memfd_create("taskqueue-stack", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.truncate(self._file, _SIZE)
        fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)

    def fileno(self) -> int:
        return self._file

    # The manager

    def request(self, number: int, job: str) -> None:
        """Write which run the next signals are about; the numbers of requests grow."""
        os.pwrite(self._file, _REQUEST.pack(number, job.encode()), 0)
        os.lseek(self._file, _DUMP_AT, os.SEEK_SET)  # worker and manager have one position

    def read_answer(self, number: int) -> str | None:
        """Return the answer to a request, or to a later one; None if it has not come."""
        asked, length, checksum = _ANSWER.unpack(os.pread(self._file, _ANSWER.size, _ANSWER_AT))
        text = os.pread(self._file, length, _TEXT_AT)
        return text.decode() if asked >= number and zlib.crc32(text) == checksum else None

    def read_dump(self) -> str:
        """Return the text that C code has written since the request."""
        written = os.lseek(self._file, 0, os.SEEK_CUR) - _DUMP_AT
        return os.pread(self._file, max(0, written), _DUMP_AT).decode(errors="replace")

    # The worker

    def read_request(self) -> tuple[int, str]:
        """Return the number and the job of the last request; 0 if there was none."""
        number, job = _REQUEST.unpack(os.pread(self._file, _REQUEST.size, 0))
        return number, job.rstrip(b"\0").decode()

    def answer(self, number: int, text: str) -> None:
        """Write the answer to a request, which fits."""
        encoded = text.encode(errors="backslashreplace")[:MOST_BYTES]
        os.pwrite(self._file, _ANSWER.pack(number, len(encoded), zlib.crc32(encoded)) + encoded, _ANSWER_AT)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
