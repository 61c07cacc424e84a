"""The modes of what is made in a folder in which somebody else exchanges it at the worst moment."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from taskqueue.errors import TaskqueueError
from taskqueue.store.backup import back_up
from taskqueue.store.bell import WORK
from taskqueue.store.open import open_store
from taskqueue.store.permissions import set_mode
from tests.store.children import in_child


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """Return a folder with a file; an attacker wants both to be open to everybody."""
    folder = tmp_path / "victim"
    folder.mkdir(mode=0o700)
    (folder / "secret").touch(mode=0o600)
    return folder


def modes(victim: Path) -> tuple[int, int]:
    return stat.S_IMODE(victim.stat().st_mode), stat.S_IMODE((victim / "secret").stat().st_mode)


def exchange_at(event: str, made: Callable[[], Iterator[Path]], victim: Path) -> None:
    """Put links to the victim in the place of what is made whenever this process is about to do what the event says."""
    is_busy = False

    def look(name: str, _: tuple[object, ...]) -> None:
        nonlocal is_busy
        if name != event or is_busy:
            return
        is_busy = True
        for path in list(made()):
            if path.is_symlink():
                continue
            is_folder = path.is_dir()
            shutil.rmtree(path) if is_folder else path.unlink()
            path.symlink_to(victim if is_folder else victim / "secret")
        is_busy = False

    sys.addaudithook(look)


MADE = {
    "the folder of the bells": "jobs.db.bells",
    "a bell": "jobs.db.bells/*",
    "the database": "jobs.db",
    "a backup": "*.unfinished",
}


@pytest.mark.parametrize("event", ["os.chmod", "open"])
@pytest.mark.parametrize("pattern", MADE.values(), ids=MADE)
def test_what_takes_the_place_of_a_new_file_keeps_its_mode(
    tmp_path: Path, victim: Path, pattern: str, event: str
) -> None:
    before = modes(victim)

    def use_the_store() -> None:
        os.umask(0o077)
        url = f"sqlite://{tmp_path}/jobs.db?mode=0666"
        if pattern == "a backup":
            open_store(url).close()
        exchange_at(event, lambda: tmp_path.glob(pattern), victim)
        with suppress(TaskqueueError), closing(open_store(url)) as store, closing(store.bell(WORK)):
            back_up(url, tmp_path / "backup.db")

    in_child(use_the_store)

    assert modes(victim) == before


def test_a_mode_is_set_whatever_the_umask_is(tmp_path: Path) -> None:
    def make() -> None:
        os.umask(0o777)
        (tmp_path / "file").touch()
        (tmp_path / "folder").mkdir()
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(f"{tmp_path}/socket")
        for name, kind in (("file", stat.S_IFREG), ("folder", stat.S_IFDIR), ("socket", stat.S_IFSOCK)):
            set_mode(tmp_path / name, 0o640, kind)
            assert os.lstat(tmp_path / name).st_mode == kind | 0o640

    in_child(make)


def test_a_second_name_of_a_file_gives_it_no_other_mode(tmp_path: Path, victim: Path) -> None:
    os.link(victim / "secret", tmp_path / "jobs.db")

    with pytest.raises(PermissionError, match="something else has taken its place"):
        set_mode(tmp_path / "jobs.db", 0o666, stat.S_IFREG)

    assert modes(victim) == (0o700, 0o600)
