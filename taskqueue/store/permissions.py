"""Sets the mode of a file, folder or socket that this process has just made.

Never by its name: in a folder of another user something else may have taken its place, and root would open that.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def set_mode(path: Path, mode: int, kind: int) -> None:
    """Set the mode of what this process has just made at the path, whatever the umask is.

    ``kind`` is what it is, such as ``stat.S_IFREG``. Raises ``OSError`` if it is gone, or something else has taken its
    place. Locks are kept: a descriptor that only stands for a path (``O_PATH``) drops none when it is closed.
    """
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        mode |= kind | status.st_mode & stat.S_ISGID
        if status.st_mode == mode:
            return
        is_linked = kind != stat.S_IFDIR and status.st_nlink > 1
        if stat.S_IFMT(status.st_mode) != kind or status.st_uid != os.geteuid() or is_linked:
            raise PermissionError(errno.EPERM, "something else has taken its place", str(path))
        os.chmod(f"/proc/self/fd/{descriptor}", stat.S_IMODE(mode))
    finally:
        os.close(descriptor)
