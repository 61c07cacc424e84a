"""A file system in which processes share no memory, as shares of virtual machines are: a folder passed through FUSE.

Run it as ``python -m tests.direct_io FOLDER MOUNT``, as root; it ends when the mount is gone.
"""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

DEVICE = Path("/dev/fuse")

FOPEN_DIRECT_IO = 1
"""No page cache, and so no memory that several processes map (``include/uapi/linux/fuse.h``)."""

LARGEST = 1 << 20
"""Bytes of the largest request."""

HEADER = struct.Struct("<IIQQIIII")
NAMED_HANDLE = struct.Struct("<QQI")


def can_mount() -> bool:
    """Return whether this user may mount such a file system here."""
    return os.geteuid() == 0 and os.access(DEVICE, os.R_OK | os.W_OK)


@contextmanager
def direct_io(folder: Path) -> Iterator[Path]:
    """Mount a new folder without shared memory, and unmount it at the end."""
    behind, mount = folder / "behind", folder / "mount"
    behind.mkdir()
    mount.mkdir()
    command = [sys.executable, "-m", "tests.direct_io", str(behind), str(mount)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1]) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"mounted\n"
            yield mount
        finally:
            subprocess.run(["umount", "--lazy", mount], check=False)
            process.kill()


class FileSystem:
    """Answers the requests of the kernel for one folder."""

    def __init__(self, folder: str) -> None:
        self._paths = {1: folder}
        self._numbers = {folder: 1}

    def answer(self, operation: int, node: int, body: bytes) -> bytes:
        """Return the answer to a request; raise ``OSError`` to refuse it."""
        answers: dict[int, Callable[[str, bytes], bytes]] = {
            1: lambda path, body: self._entry(_child(path, body)),
            3: lambda path, _: self._attributes(path),
            4: self._change,
            8: self._make,
            10: self._remove,
            14: lambda path, _: _opened(path, os.O_RDWR),
            15: lambda _, body: _read(body),
            16: lambda _, body: _written(body),
            17: lambda _path, _body: struct.pack("<5Q4I24x", LARGEST, LARGEST, LARGEST, 1000, 1000, 4096, 255, 4096, 0),
            18: lambda _, body: _closed(body),
            20: lambda _path, _body: b"",
            25: lambda _path, _body: b"",
            26: lambda _path, _body: struct.pack("<4I2H2I2H32x", 7, 31, LARGEST, 0, 12, 10, 65536, 1, 0, 0),
            27: lambda _path, _body: struct.pack("<QII", 0, 0, 0),
            28: lambda _path, _body: b"",
            29: lambda _path, _body: b"",
            35: self._create,
        }
        if operation not in answers:
            raise OSError(errno.ENOSYS, "")
        return answers[operation](self._paths.get(node, ""), body)

    def _stat(self, path: str) -> bytes:
        found = os.lstat(path)
        times = (found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns)
        seconds, parts = [at // 10**9 for at in times], [at % 10**9 for at in times]
        owner = (found.st_mode, found.st_nlink, found.st_uid, found.st_gid, 0, 4096, 0)
        return struct.pack("<6Q10I", self._number(path), found.st_size, found.st_blocks, *seconds, *parts, *owner)

    def _attributes(self, path: str) -> bytes:
        return struct.pack("<QII", 0, 0, 0) + self._stat(path)

    def _entry(self, path: str) -> bytes:
        attributes = self._stat(path)
        return struct.pack("<QQQQII", self._number(path), 0, 0, 0, 0, 0) + attributes

    def _number(self, path: str) -> int:
        if path not in self._numbers:
            self._numbers[path] = max(self._paths) + 1
            self._paths[self._numbers[path]] = path
        return self._numbers[path]

    def _change(self, path: str, body: bytes) -> bytes:
        valid, _, _, size = struct.unpack_from("<IIQQ", body)
        if valid & 1:
            os.chmod(path, struct.unpack_from("<I", body, 68)[0] & 0o7777)
        if valid & 8:
            os.truncate(path, size)
        return self._attributes(path)

    def _make(self, path: str, body: bytes) -> bytes:
        child = _child(path, body, 16)
        os.mknod(child, *struct.unpack_from("<I", body))
        return self._entry(child)

    def _create(self, path: str, body: bytes) -> bytes:
        flags, mode = struct.unpack_from("<II", body)
        child = _child(path, body, 16)
        opened = _opened(child, os.O_RDWR | os.O_CREAT | (flags & os.O_EXCL), mode & 0o7777)
        return self._entry(child) + opened

    def _remove(self, path: str, body: bytes) -> bytes:
        os.unlink(_child(path, body))
        self._numbers.pop(_child(path, body), None)
        return b""


def _child(path: str, body: bytes, start: int = 0) -> str:
    return os.path.join(path, os.fsdecode(body[start : body.index(b"\0", start)]))


def _opened(path: str, flags: int, mode: int = 0o600) -> bytes:
    return struct.pack("<QII", os.open(path, flags, mode), FOPEN_DIRECT_IO, 0)


def _read(body: bytes) -> bytes:
    descriptor, offset, size = NAMED_HANDLE.unpack_from(body)
    return os.pread(descriptor, size, offset)


def _written(body: bytes) -> bytes:
    descriptor, offset, size = NAMED_HANDLE.unpack_from(body)
    return struct.pack("<II", os.pwrite(descriptor, body[40 : 40 + size], offset), 0)


def _closed(body: bytes) -> bytes:
    os.close(*struct.unpack_from("<Q", body))
    return b""


def serve(folder: str, mount: str) -> None:
    """Mount the file system, and answer until it is unmounted."""
    kernel = os.open(DEVICE, os.O_RDWR)
    options = f"fd={kernel},rootmode=40000,user_id=0,group_id=0"
    subprocess.run(["mount", "-i", "-t", "fuse", "-o", options, "direct_io", mount], check=True, pass_fds=[kernel])
    print("mounted", flush=True)
    files = FileSystem(folder)
    while True:
        try:
            request = os.read(kernel, LARGEST + 4096)
        except OSError as error:
            if error.errno == errno.ENODEV:
                return
            continue
        _, operation, unique, node, *_ = HEADER.unpack_from(request)
        if operation in (2, 42):  # forgotten nodes are not answered
            continue
        try:
            answer, refused = files.answer(operation, node, request[HEADER.size :]), 0
        except OSError as error:
            answer, refused = b"", -(error.errno or errno.EIO)
        os.write(kernel, struct.pack("<IiQ", 16 + len(answer), refused, unique) + answer)


if __name__ == "__main__":
    serve(*sys.argv[1:])
