"""Pythons of Debian's unstable distribution, for versions that this machine does not have.

The distribution has a folder, made once for all checkouts of a user, and entered with ``chroot``. The checkout,
``/proc``, ``/sys``, ``/dev`` and ``/tmp`` are mounted there, only for the processes inside: the mounts end with them.
Only root can do this.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
VERSIONS = ((3, 14), (3, 15))
SUITE = "sid"
NEEDS = ("debootstrap", "unshare", "chroot")

ENTER = r"""
set -e
inside=$1 checkout=$2
shift 2
for folder in /proc /sys /dev /tmp; do
    mount --rbind "$folder" "$inside$folder"
done
mkdir -p "$inside$checkout"
mount --bind "$checkout" "$inside$checkout"
exec chroot "$inside" /usr/bin/env -C "$checkout" "$@"
"""


def why_not() -> str:
    """Return why the distribution cannot be used here, or nothing if it can."""
    if os.geteuid() != 0:
        return "only root can enter Debian's unstable distribution"
    if missing := [program for program in NEEDS if shutil.which(program) is None]:
        return f"{', '.join(missing)} not found"
    return ""


def folder() -> Path:
    """Return where the distribution is kept."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / f"taskqueue-tests/{SUITE}"


def inside(command: Sequence[str]) -> list[str]:
    """Return the command that runs ``command`` in the distribution, in the checkout's folder."""
    return ["unshare", "--mount", "sh", "-c", ENTER, "enter", str(folder()), str(ROOT), *command]


def make() -> None:
    """Load the distribution, unless its folder has each of the Pythons; it takes less than a minute."""
    folder().parent.mkdir(parents=True, exist_ok=True)
    with (folder().parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if all((folder() / "usr/bin" / name).exists() for name in names()):
            return
        begun = folder().with_suffix(".begun")
        for place in (begun, folder()):
            shutil.rmtree(place, ignore_errors=True)
        packages = ",".join(f"{name}-venv" for name in names())
        command = ["debootstrap", "--variant=minbase", f"--include={packages}", SUITE, str(begun)]
        made = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if made.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} failed:\n{made.stdout}")
        begun.rename(folder())


def names() -> list[str]:
    """Return how the interpreters are called, such as ``python3.14``."""
    return [f"python{major}.{minor}" for major, minor in VERSIONS]
